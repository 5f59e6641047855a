"""The requirements of later versions of torch. Each check names the version that introduced it."""

import ctypes
import gc
import threading
from types import SimpleNamespace

from tests.python.feature_checks import (
    FERRO,
    KIB,
    MIB,
    error_of,
    filled,
    finish,
    since,
    statistic,
    take,
    words,
)

import torch

TOTAL = torch.cuda.mem_get_info()[1]
memory = torch.cuda.memory
settings = torch._C._accelerator_setAllocatorSettings
kept = []


def storage(size=0):
    return torch.empty(size, dtype=torch.uint8, device="cuda").untyped_storage()


def kind_at(owner, size, address):
    """The type of the error, and its text up to the address."""
    kind, text = error_of(lambda: owner._resize_with_addr_(size, address))
    return kind, text.split(" 0x")[0]


# ---- 2.11


def own_allocator(allocate, free):
    """An allocator with the two functions that a MemPool calls; lives as long as the process."""
    word, pointer = ctypes.c_size_t, ctypes.c_void_p
    functions = (
        ctypes.CFUNCTYPE(pointer, word, ctypes.c_int, pointer)(allocate),
        ctypes.CFUNCTYPE(None, pointer, word, ctypes.c_int, pointer)(free),
    )
    kept.append(functions)
    addresses = [ctypes.cast(function, pointer).value for function in functions]
    return torch._C._cuda_customAllocator(*addresses)


@since(11)
def equal_free_blocks_of_descending_addresses():
    """Sizes are in MiB. Since torch 2.13 native takes the block of the oldest segment, before that
    the lowest."""
    region, offset = take(256 * MIB), 256 * MIB
    base = region.data_ptr()

    def allocate(size, device, stream):
        nonlocal offset
        offset -= size
        return base + offset

    def offsets(pool, size):
        with torch.cuda.use_mem_pool(pool):
            blocks = [take(size) for _ in range(3)]
        return [(block.data_ptr() - base) // MIB for block in blocks]

    pool = torch.cuda.MemPool(own_allocator(allocate, lambda *_: None))
    found = [offsets(pool, size * MIB) for size in (24, 24, 23)]
    del pool
    gc.collect()
    torch.cuda.empty_cache()
    return *found, region.nbytes // MIB


@since(11)
def native_expandable_segments_work_on_the_simulated_gpu():
    settings("expandable_segments:True")
    try:
        kept = [take(30 * MIB) for _ in range(2)]
        return [tensor.numel() for tensor in kept]
    finally:
        settings("expandable_segments:False")


# ---- 2.12


@since(12)
def a_request_beyond_the_fraction_is_rejected_at_once():
    kept = take(TOTAL // 4)
    settings("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5")
    try:
        before = torch.cuda.memory_stats()
        kind, text = error_of(lambda: take(TOTAL // 2))
        after = torch.cuda.memory_stats()
        inside = take(TOTAL // 8)
    finally:
        settings("throw_on_cudamalloc_oom:False,per_process_memory_fraction:1.0")
    names = ("num_oom_rejections", "num_ooms", "num_alloc_retries", "reserved_bytes.all.current")
    assert kept.numel()
    assert inside.numel()
    return kind, text.split(". ")[:2], [after[name] - before[name] for name in names]


@since(12)
def without_the_setting_nothing_is_rejected():
    before = torch.cuda.memory_stats()["num_oom_rejections"]
    kind, text = error_of(lambda: take(2 * TOTAL))
    assert "Tried to allocate" in text
    return kind, torch.cuda.memory_stats()["num_oom_rejections"] - before


@since(12)
def the_limit_of_the_process_comes_before_a_rejection():
    settings("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5")
    torch.cuda.set_per_process_memory_fraction(0.5)
    try:
        del_me = take(TOTAL // 4)
        del del_me
        kept = take(TOTAL // 3)  # fits once the cache is released
        kind, text = error_of(lambda: take(TOTAL // 3))
    finally:
        settings("throw_on_cudamalloc_oom:False,per_process_memory_fraction:1.0")
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert kept.numel()
    return kind, "preemptively" in text, "allowed" in text


@since(12)
def rejections_count_until_they_are_reset():
    settings("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.25")
    try:
        torch.cuda.reset_accumulated_memory_stats()
        for _ in range(3):
            error_of(lambda: take(TOTAL // 2))
        counts = [torch.cuda.memory_stats()["num_oom_rejections"]]
        torch.cuda.reset_accumulated_memory_stats()
        counts.append(torch.cuda.memory_stats()["num_oom_rejections"])
    finally:
        settings("throw_on_cudamalloc_oom:False,per_process_memory_fraction:1.0")
    return counts


# ---- 2.13


def reserved_of(pool_id):
    name = "reserved_bytes_by_private_pools.{}_{}.{{}}.{{}}".format(*pool_id)
    stats = torch.cuda.memory_stats()
    columns = ("current", "peak", "allocated", "freed")
    found = [stats.get(name.format("all", column)) for column in columns]
    large = [stats.get(name.format("large_pool", column)) for column in columns]
    assert found == large
    return found


@since(13)
def bytes_of_a_pool_through_its_life():
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    pool = torch.cuda.MemPool()
    pool_id = pool.id
    seen = [reserved_of(pool_id)]
    with torch.cuda.use_mem_pool(pool):
        kept = take(30 * MIB)
    seen.append(reserved_of(pool_id))
    del kept
    torch.cuda.empty_cache()
    seen.append(reserved_of(pool_id))
    del pool
    gc.collect()
    seen.append(reserved_of(pool_id))
    torch.cuda.reset_peak_memory_stats()
    seen.append(reserved_of(pool_id))
    torch.cuda.reset_accumulated_memory_stats()
    seen.append(reserved_of(pool_id))
    return seen


@since(13)
def bytes_of_pools_are_parts_of_the_whole():
    pools = [torch.cuda.MemPool() for _ in range(3)]
    kept = [take(4 * MIB)]
    for pool in pools:
        with torch.cuda.use_mem_pool(pool):
            kept.append(take(40 * MIB))
    parts = [reserved_of(pool.id)[0] for pool in pools]
    assert all(part >= 40 * MIB for part in parts)
    assert sum(parts) < torch.cuda.memory_reserved()
    return parts


@since(13)
def bytes_of_a_graphs_pool():
    graph = torch.cuda.CUDAGraph()
    x = torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda")
    with torch.cuda.graph(graph):
        y = x + 1
    pool_id = graph.pool()
    during = reserved_of(pool_id)[0]
    assert during >= 8 * MIB
    del y, graph
    gc.collect()
    torch.cuda.empty_cache()
    return reserved_of(pool_id)[0]


@since(13)
def a_freed_address_is_had_back():
    first = filled(8 * MIB, 3)
    second = filled(8 * MIB, 4)
    owner = first.untyped_storage()
    address = owner.data_ptr()
    owner.resize_(0)
    allocated = torch.cuda.memory_allocated()
    owner._resize_with_addr_(8 * MIB, address)
    assert owner.data_ptr() == address
    assert torch.cuda.memory_allocated() == allocated + 8 * MIB
    first.copy_(words(5, 8 * MIB))
    assert torch.equal(first.cpu(), words(5, 8 * MIB))
    assert torch.equal(second.cpu(), words(4, 8 * MIB))
    return owner.nbytes()


@since(13)
def the_middle_of_free_memory_is_had():
    first, second = take(8 * MIB), take(8 * MIB)
    owner = first.untyped_storage()
    address = owner.data_ptr()
    owner.resize_(0)
    owner._resize_with_addr_(2 * MIB, address + MIB)
    assert owner.data_ptr() == address + MIB
    other = storage()
    other._resize_with_addr_(5 * MIB, address + 3 * MIB)
    blocks = [
        (block["address"] - address, block["size"], block["state"])
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if address <= block["address"] < address + 16 * MIB
    ]
    assert second.numel()
    return [block for block in blocks if block[2] == "active_allocated"]


@since(13)
def memory_in_use_is_not_had():
    first, second = take(8 * MIB), take(8 * MIB)
    owner, other = first.untyped_storage(), storage()
    address = owner.data_ptr()
    owner.resize_(0)
    owner._resize_with_addr_(2 * MIB, address + MIB)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    kinds = [
        kind_at(other, 2 * MIB, address + MIB),
        kind_at(other, MIB, address + 2 * MIB),
        kind_at(other, 2 * MIB, address),
        kind_at(other, 20 * MIB, address + 4 * MIB),
        kind_at(other, MIB, address + 100),
        kind_at(other, MIB, 1 << 24),
        kind_at(other, MIB, second.data_ptr()),
    ]
    assert (other.nbytes(), other.data_ptr()) == (0, 0)
    if FERRO:
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    return kinds


@since(13)
def an_address_belongs_to_its_pool_and_stream():
    first = take(4 * MIB)
    owner, other = first.untyped_storage(), storage()
    address = owner.data_ptr()
    owner.resize_(0)
    pool = torch.cuda.MemPool()
    with torch.cuda.stream(torch.cuda.Stream()):
        kinds = [kind_at(other, 2 * MIB, address)]
    with torch.cuda.use_mem_pool(pool):
        kinds.append(kind_at(other, 2 * MIB, address))
        inside = storage(4 * MIB)
        of_pool = inside.data_ptr()
        inside.resize_(0)
        kinds.append(kind_at(inside, 4 * MIB, of_pool))
        inside.resize_(0)
    kinds.append(kind_at(inside, 4 * MIB, of_pool))
    return kinds


@since(13)
def a_result_of_a_graph_is_had_back_at_its_address():
    graph = torch.cuda.CUDAGraph()
    x = filled(8 * MIB, 1)
    pool = torch.cuda.MemPool()
    with torch.cuda.graph(graph, pool=pool.id):
        y = x.clone()
    address, size = y.data_ptr(), y.nbytes
    owner = y.untyped_storage()
    owner.resize_(0)
    # The address belongs to the graph's pool and to the stream of its capture.
    with torch.cuda.use_mem_pool(pool), torch.cuda.stream(torch.cuda.graph.default_capture_stream):
        owner._resize_with_addr_(size, address)
    x.copy_(words(5, 8 * MIB))
    graph.replay()
    return y.data_ptr() == address, torch.equal(y.cpu(), words(5, 8 * MIB))


@since(13)
def pages_that_left_come_back_to_their_address():
    first = take(8 * MIB)
    owner = first.untyped_storage()
    address = owner.data_ptr()
    owner.resize_(0)
    torch.cuda.empty_cache()
    if FERRO:  # addresses stay when their memory is released
        owner._resize_with_addr_(8 * MIB, address)
        assert owner.data_ptr() == address
        first.copy_(torch.full((8 * MIB,), 9, dtype=torch.uint8))
        assert first.cpu().eq(9).all()


@since(13)
def pools_give_back_while_memory_is_only_diverted():
    """To a pool or by a graph that has not begun to capture: no capture runs."""
    pool, gone = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(gone):
        take(16 * MIB)
    with torch.cuda.use_mem_pool(pool):
        kept = take(4 * MIB)
        held = reserved_of(gone.id)[0]
        gone_id = gone.id
        del gone
        gc.collect()
    assert held >= 16 * MIB
    assert kept.numel()
    return reserved_of(gone_id)[0]


# ---- 2.14


def annotations():
    entries = memory._snapshot()["device_traces"][0]
    return [entry for entry in entries if entry["action"] == "annotate"]


@since(14)
def metadata_is_supported():
    return memory._memory_metadata_supported()


@since(14)
def annotations_are_entries_of_the_trace():
    x = take(MIB)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        y = take(1000)
    memory._annotate_tensor(x, "before the history")
    memory._record_memory_history("all", clear_history=True)
    try:
        memory._set_memory_metadata("of the thread")
        memory._annotate_tensor(x, "whole")
        memory._annotate_tensor(x[512:], "a view of it")
        memory._annotate_tensor(y, "on another stream")
        thread = threading.Thread(target=lambda: memory._annotate_tensor(x, "by a thread"))
        thread.start()
        thread.join()
        found = annotations()
    finally:
        memory._set_memory_metadata("")
        memory._record_memory_history(None)
    assert [entry["addr"] for entry in found] == [x.data_ptr()] * 2 + [y.data_ptr(), x.data_ptr()]
    assert found[2]["stream"] == side.cuda_stream
    assert all(entry["frames"] for entry in found)
    return [(entry["user_metadata"], entry["size"], entry["pool_id"]) for entry in found]


@since(14)
def only_live_allocations_are_annotated():
    x = take(MIB)
    address = x.data_ptr()

    def kind(pointer):
        annotate = torch._C._cuda_annotateMemory
        name, text = error_of(lambda: annotate(pointer, "x"))
        return name, "annotateMemory: no live allocation found" in text

    kinds = [kind(address), kind(address + 512), kind(1 << 20)]
    del x
    return [*kinds, kind(address)]


@since(14)
def annotations_can_be_skipped():
    x = take(MIB)
    memory._record_memory_history("all", clear_history=True, skip_actions=["annotate"])
    try:
        memory._annotate_tensor(x, "unheard")
        return len(annotations())
    finally:
        memory._record_memory_history(None)


@since(14)
def snapshots_show_pinned_memory():
    memory._record_memory_history("all", clear_history=True, record_pinned_host_memory=True)
    try:
        host = torch.empty(64 * KIB, dtype=torch.uint8, pin_memory=True)
        snapshot = memory._snapshot()
        return (
            len(snapshot["host_segments"]) > 0,
            len(snapshot["host_traces"]) > 0,
            host.is_pinned(),
        )
    finally:
        memory._record_memory_history(None)


# ---- 2.15


@since(15)
def placement_is_marked_in_the_trace():
    x = take(4 * MIB)
    owner = x.untyped_storage()
    address = owner.data_ptr()
    owner.resize_(0)
    memory._record_memory_history("all", clear_history=True)
    try:
        owner._resize_with_addr_(4 * MIB, address)
        y = take(2 * MIB)
        entries = memory._snapshot()["device_traces"][0]
    finally:
        memory._record_memory_history(None)
    assert y.numel()
    marks = [
        (entry["user_metadata"], entry.get("internal_metadata"))
        for entry in entries
        if entry["action"] == "alloc"
    ]
    return marks, statistic("allocation") > 1


def pools_with(*tensors):
    """The pools in which tensors lie."""
    segments = memory.memory_snapshot(include_traces=False)
    return [
        tuple(segment["segment_pool_id"])
        for tensor in tensors
        for segment in segments
        if segment["address"] <= tensor.data_ptr() < segment["address"] + segment["total_size"]
    ]


def captured(graph, begin, source):
    """The tensors that a node's body and the capture around it allocate."""
    predicate = torch.ones((), dtype=torch.bool, device="cuda")
    with torch.cuda.graph(graph):
        first = source.clone()
        begin(predicate)
        inner = source.clone()
        scratch = take(5 * MIB)
        del scratch
        if begin == graph.begin_capture_to_while_node:
            graph.set_conditional_handle_for_current_node(predicate)
        graph.end_capture_to_conditional_node()
        last = first.clone()
    return first, inner, last


def nodes_with_a_body(name):
    source = filled(3 * MIB, 7)
    graph = torch.cuda.CUDAGraph()
    before = statistic("allocation"), statistic("requested_bytes")
    first, inner, last = captured(graph, getattr(graph, name), source)
    taken = [statistic("allocation") - before[0], statistic("requested_bytes") - before[1]]
    assert pools_with(first, inner, last) == [graph.pool()] * 3
    for tensor in (first, inner, last):
        tensor.zero_()
    graph.replay()
    torch.cuda.synchronize()
    # The simulated GPU never runs a body.
    replayed = [torch.equal(tensor.cpu(), source.cpu()) for tensor in (first, last)]
    addresses = {tensor.data_ptr() for tensor in (first, inner, last)}
    del graph, first, inner, last
    gc.collect()
    torch.cuda.empty_cache()
    return taken, replayed, len(addresses), statistic("allocation") - before[0]


@since(15)
def if_nodes_allocate_in_their_graphs_pool():
    return nodes_with_a_body("begin_capture_to_if_node")


@since(15)
def while_nodes_allocate_in_their_graphs_pool():
    return nodes_with_a_body("begin_capture_to_while_node")


@since(15)
def bodies_nest():
    source = filled(3 * MIB, 7)
    predicate = torch.ones((), dtype=torch.bool, device="cuda")
    graph = torch.cuda.CUDAGraph()
    tensors = []
    with torch.cuda.graph(graph):
        for _ in range(3):
            graph.begin_capture_to_if_node(predicate)
            tensors.append(source.clone())
        for _ in range(3):
            graph.end_capture_to_conditional_node()
            tensors.append(source.clone())
    in_pool = pools_with(*tensors) == [graph.pool()] * 6
    for tensor in tensors:
        tensor.zero_()
    graph.replay()
    torch.cuda.synchronize()
    ends = [torch.equal(tensor.cpu(), source.cpu()) for tensor in tensors]
    return in_pool, ends, len({tensor.data_ptr() for tensor in tensors})


def runtime_of_cuda_bindings(calls):
    """The functions that `_use_uvm` calls. NVIDIA's runtime does not start on a simulated GPU."""
    library = ctypes.CDLL("libcudart.so.13")

    def allocate(size, flags):
        calls.append(size)
        pointer = ctypes.c_void_p()
        error = library.cudaMallocManaged(ctypes.byref(pointer), ctypes.c_size_t(size), flags)
        return error, pointer.value or 0

    def free(pointer):
        calls.append("free")
        return (library.cudaFree(ctypes.c_void_p(pointer)),)

    return SimpleNamespace(
        cudaError_t=SimpleNamespace(cudaSuccess=0),
        cudaDeviceAttr=SimpleNamespace(),
        cudaMemAttachGlobal=1,
        cudaMallocManaged=allocate,
        cudaFree=free,
    )


@since(15)
def unified_memory():
    import cuda.bindings

    calls = []
    cuda.bindings.runtime = runtime_of_cuda_bindings(calls)
    before = statistic("allocation")
    with torch.cuda._use_uvm() as pool:
        x = filled(3 * MIB, 7)
        y = take(100)
        z = x.clone()
    served = pools_with(x, y, z) == [pool.id] * 3, statistic("allocation") - before
    outside = pools_with(take(3 * MIB)) == [(0, 0)]
    bytes_agree = torch.equal(x.cpu(), z.cpu()), int(z.cpu()[0])
    del x, y, z, pool
    gc.collect()
    torch.cuda.empty_cache()
    return calls, served, outside, bytes_agree, statistic("allocation") - before


finish()
