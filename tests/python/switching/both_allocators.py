"""Pages of ferro_alloc beside memory of PyTorch's own allocator, in one process.

Each check tests a property that holds for both together, and returns True.
"""

import threading

from tests.python.feature_checks import MIB, check, error_of, filled, finish, take, words

import torch

from ferro_alloc import graphs

TOTAL = torch.cuda.mem_get_info()[1]


def set_expandable(expandable):
    torch._C._accelerator_setAllocatorSettings(f"expandable_segments:{expandable}")


def take_plain(size):
    set_expandable(False)
    try:
        return take(size)
    finally:
        set_expandable(True)


def take_in(pool, size):
    with torch.cuda.use_mem_pool(pool):
        return take(size)


def limit_to(size):
    torch.cuda.set_per_process_memory_fraction(size / TOTAL)


def is_expandable(tensor):
    address = tensor.data_ptr()
    return next(
        segment["is_expandable"]
        for segment in torch.cuda.memory_snapshot()
        if segment["address"] <= address < segment["address"] + segment["total_size"]
    )


@check
def sums_are_exact():
    pool = torch.cuda.MemPool(no_split=True)
    kept = [take(30 * MIB), take_in(pool, 20 * MIB), take_plain(24 * MIB), take(3 * MIB)]
    kinds = [is_expandable(tensor) for tensor in kept]
    segments = torch.cuda.memory_snapshot()
    return (
        kinds == [True, False, False, True]
        and torch.cuda.memory_allocated() == sum(tensor.nbytes for tensor in kept)
        and torch.cuda.memory_reserved() == sum(segment["total_size"] for segment in segments)
        and torch.cuda.memory_stats()["allocation.all.current"] == 4
    )


@check
def peaks_of_sums_are_exact():
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    pages = take(40 * MIB)
    plain = take_plain(20 * MIB)  # 60
    del pages
    pages = take(10 * MIB)  # 30
    more = take_plain(60 * MIB)  # 90
    del plain, more
    pages = [pages, take(70 * MIB)]  # 80
    return torch.cuda.max_memory_allocated() - before == 90 * MIB


@check
def peaks_count_later_frees_of_the_other_allocator():
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    plain = take_plain(100 * MIB)
    pages = take(100 * MIB)
    del plain, pages
    first = torch.cuda.max_memory_allocated() - before
    torch.cuda.reset_peak_memory_stats()
    pages = take(80 * MIB)
    plain = take_plain(70 * MIB)
    del pages
    more = take(10 * MIB)
    del plain, more
    return (first, torch.cuda.max_memory_allocated() - before) == (200 * MIB, 150 * MIB)


@check
def a_limit_that_is_lifted_is_lifted_for_both():
    limit_to(100 * MIB)
    limit_to(TOTAL)
    plain = take_plain(300 * MIB)
    return plain.numel() == 300 * MIB


@check
def failures_are_counted_and_recorded_once():
    pool = torch.cuda.MemPool(no_split=True)
    names = ("num_ooms", "num_alloc_retries")
    kept = take(MIB)
    before = [torch.cuda.memory_stats()[name] for name in names]
    torch.cuda.memory._record_memory_history()
    try:
        kinds = [error_of(lambda: take_in(pool, 2 * TOTAL))[0] for _ in range(3)]
        (trace,) = torch.cuda.memory._snapshot()["device_traces"]
    finally:
        torch.cuda.memory._record_memory_history(None)
    ooms, retries = [
        torch.cuda.memory_stats()[name] - old for name, old in zip(names, before, strict=True)
    ]
    recorded = sum(entry["action"] == "oom" for entry in trace)
    return (
        kept.numel()
        and (kinds, ooms, recorded) == (["OutOfMemoryError"] * 3, 3, 3)
        and (0 <= retries <= 3)
    )


@check
def one_limit_counts_both():
    limit_to(100 * MIB)
    try:
        pages, plain = take(40 * MIB), take_plain(40 * MIB)
        kinds = [error_of(lambda: take(30 * MIB))[0], error_of(lambda: take_plain(30 * MIB))[0]]
        fits = [take(10 * MIB), take_plain(10 * MIB)]
        del pages, plain, fits
        return kinds == ["OutOfMemoryError"] * 2
    finally:
        limit_to(TOTAL)


@check
def a_request_takes_the_cache_of_the_other_allocator():
    limit_to(100 * MIB)
    try:
        for first, second in ((take, take_plain), (take_plain, take)):
            cached = first(80 * MIB)
            del cached
            kept = second(60 * MIB)
            del kept
            torch.cuda.empty_cache()
        return True
    finally:
        limit_to(TOTAL)


@check
def a_failure_reports_the_memory_of_both():
    pages, plain = take(100 * MIB), take_plain(60 * MIB)
    ours = error_of(lambda: take(TOTAL))[1]
    theirs = error_of(lambda: take_plain(TOTAL))[1]
    del pages, plain
    return all("160.00 MiB is allocated by PyTorch" in text for text in (ours, theirs))


@check
def pools_of_the_other_allocator_lend():
    pool = torch.cuda.MemPool(use_on_oom=True, no_split=True)
    lent = take_in(pool, 60 * MIB)
    address = lent.data_ptr()
    del lent
    limit_to(80 * MIB)
    before = torch.cuda.memory_stats()["num_ooms"]
    try:
        borrowed = take(60 * MIB)
        failures = torch.cuda.memory_stats()["num_ooms"] - before
        return (borrowed.data_ptr(), failures) == (address, 0)
    finally:
        limit_to(TOTAL)


@check
def groups_refuse_pools_of_the_other_allocator():
    pool = torch.cuda.MemPool(no_split=True)
    handle = graphs.graph_pool_handle(mem_pool=pool)
    kind, text = error_of(lambda: graphs.exclusive(handle))
    return kind == "FerroError" and "PyTorch's own allocator, which shares no pages" in text


@check
def blocks_of_pools_that_are_not_split_are_alone():
    pool = torch.cuda.MemPool(no_split=True)
    small = [take_in(pool, MIB), take_in(pool, MIB)]
    ranges = {s["address"] for s in torch.cuda.memory_snapshot() if s["segment_pool_id"] == pool.id}
    return len(ranges) == len(small)


@check
def a_capture_that_fails_there_leaves_all_usable():
    pool = torch.cuda.MemPool(no_split=True)
    source = filled(MIB, 3)
    for _ in range(3):
        graph = torch.cuda.CUDAGraph()
        error_of(lambda graph=graph: fail_in(graph, pool, source))
        torch.cuda.set_stream(torch.cuda.default_stream())
        del graph
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        result = source.clone()
    graph.replay()
    right = bool((result.cpu() == words(3, MIB)).all())
    other = torch.cuda.MemPool(no_split=True)
    take_in(other, MIB)
    del other  # releases its memory
    return right


def fail_in(graph, pool, source):
    with torch.cuda.graph(graph, pool=pool.id):
        source.clone()
        torch.cuda.synchronize()


@check
def plain_memory_that_is_freed_in_a_capture_is_free_after_it():
    plain, source = take_plain(4 * MIB), filled(MIB, 3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = source.clone()
        plain.record_stream(torch.cuda.current_stream())
        del plain
    torch.cuda.empty_cache()
    again = take_plain(4 * MIB)
    graph.replay()
    return again.numel() == 4 * MIB and bool((result.cpu() == words(3, MIB)).all())


@check
def another_thread_takes_plain_memory_beside_a_capture():
    blocks, source = [take_plain(24 * MIB), take_plain(24 * MIB)], filled(MIB, 4)
    side = torch.cuda.Stream()
    blocks[1].record_stream(side)

    def work():
        blocks.clear()
        blocks.append(take_plain(24 * MIB))

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = source.clone()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    graph.replay()
    return len(blocks) == 1 and bool((result.cpu() == words(4, MIB)).all())


@check
def another_thread_takes_new_plain_memory_beside_a_capture():
    """A capture in PyTorch's default mode forbids other threads the call that gets it."""
    source, taken = filled(MIB, 4), []
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = source.clone()
        thread = threading.Thread(target=lambda: taken.append(take_plain(40 * MIB)))
        thread.start()
        thread.join()
    graph.replay()
    return len(taken) == 1 and bool((result.cpu() == words(4, MIB)).all())


@check
def histories_and_trackers_include_both():
    torch.cuda.memory._record_memory_history(max_entries=100)
    try:
        pages, plain = take(3 * MIB), take_plain(5 * MIB)
        (trace,) = torch.cuda.memory._snapshot()["device_traces"]
        sizes = [entry["size"] for entry in trace if entry["action"] == "alloc"]
        del pages, plain
        return sizes[-2:] == [3 * MIB, 5 * MIB]
    finally:
        torch.cuda.memory._record_memory_history(None)


@check
def all_memory_is_released():
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated() <= 4 * MIB and torch.cuda.memory_reserved() <= 26 * MIB


finish()
