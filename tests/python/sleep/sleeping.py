"""Checks sleep and wake case by case. Prints the results as JSON."""

import ctypes
import json
import sys
import threading
from contextlib import contextmanager

import torch

import ferro_alloc
from ferro_alloc import _C
from ferro_alloc.graphs._sizes import private_pools

MIB = 1 << 20
seen = {}
base = 0
GRAPH = torch._C._CUDAGraph
ferro_alloc.install(ferro_alloc.Config(memory_limit_mb=1000))


class MallocInfo(ctypes.Structure):
    """The result of mallinfo2. `uordblks` has the bytes in use."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def check(function):
    global base
    base = held()
    seen[function.__name__] = function()
    ferro_alloc.wake()
    torch.cuda.synchronize()
    _C.check_invariants(0)
    torch.cuda.empty_cache()
    return function


def held():
    torch.cuda.empty_cache()
    return round(torch.cuda.memory_reserved() / MIB)


def added():
    """The change since the check began, because libraries keep some memory."""
    return held() - base


def on_device():
    free, total = torch.cuda.mem_get_info()
    return round((total - free) / MIB)


def filled(mib, value):
    return torch.full((mib * MIB // 4,), value, dtype=torch.int32, device="cuda")


def holds(tensor, value):
    return bool((tensor == value).all())


@contextmanager
def refused(kinds, into):
    try:
        yield
    except kinds as error:
        into.append(f"{type(error).__name__}: {error}")
    else:
        into.append("nothing was refused")


torch.cuda.init()
torch.zeros(1, device="cuda")
torch.cuda.empty_cache()
before = on_device()


@check
def contents_come_back():
    tensors = [filled(mib, n) for n, mib in enumerate([1, 3, 40, 7, 64])]
    small = [torch.full((n,), float(n), device="cuda") for n in range(1, 40)]
    places = [t.data_ptr() for t in tensors + small]
    live = torch.cuda.memory_allocated()
    slept = ferro_alloc.sleep()
    asleep = ferro_alloc.asleep()
    status = ferro_alloc.status().devices[0]
    assert status.asleep_bytes == asleep.device_bytes
    assert status.saved_host_bytes == asleep.content_bytes
    assert "; asleep 0." in str(status), status
    _C.check_invariants(0)
    state = [held(), on_device() - before <= 4, torch.cuda.memory_allocated() == live]
    assert slept.device_bytes == asleep.device_bytes > 0, (slept, asleep)
    assert asleep.content_bytes == slept.content_bytes >= live - MIB, (asleep, live)
    assert asleep.host_bytes >= asleep.content_bytes
    assert not slept.staying
    woke = ferro_alloc.wake()
    assert woke.device_bytes == slept.device_bytes
    assert woke.content_bytes == slept.content_bytes
    assert ferro_alloc.asleep().device_bytes == ferro_alloc.asleep().content_bytes == 0
    assert places == [t.data_ptr() for t in tensors + small]
    state.append(all(holds(t, n) for n, t in enumerate(tensors)))
    state.append(all(holds(t, float(n)) for n, t in enumerate(small, 1)))
    return state


@check
def contents_are_dropped():
    weights = filled(20, 1)
    slept = ferro_alloc.sleep(keep="nothing")
    assert slept.content_bytes == ferro_alloc.asleep().content_bytes == 0
    assert held() == 0
    ferro_alloc.wake()
    weights.fill_(5)
    return holds(weights, 5)


@check
def tags_sleep_alone():
    with ferro_alloc.tag("weights"):
        weights = filled(64, 1)
    with ferro_alloc.tag("cache"):
        cache = filled(96, 2)
    rest = filled(32, 3)
    torch.cuda.empty_cache()
    full = held()
    first = ferro_alloc.sleep("cache", keep="nothing")
    with_weights = [full - held(), holds(weights, 1), holds(rest, 3)]
    second = ferro_alloc.sleep(["weights"])
    without = [full - held(), holds(rest, 3)]
    ferro_alloc.wake("weights")
    assert holds(weights, 1)
    assert holds(rest, 3)
    woken = full - held()
    ferro_alloc.wake("cache")
    cache.fill_(7)
    assert full == held(), (full, held())
    assert holds(weights, 1)
    assert holds(cache, 7)
    none = ferro_alloc.sleep("a tag without memory")
    assert none.device_bytes == 0
    assert first.content_bytes == 0 < second.content_bytes
    return [with_weights, without, woken]


@check
def memory_is_freed_while_it_sleeps():
    kept, gone = filled(30, 1), filled(50, 2)
    both = [filled(1, 3), filled(1, 4)]
    ferro_alloc.sleep()
    live = torch.cuda.memory_allocated()
    del gone, both[0]
    freed = round((live - torch.cuda.memory_allocated()) / MIB)
    torch.cuda.empty_cache()
    _C.check_invariants(0)
    ferro_alloc.wake()
    _C.check_invariants(0)
    assert holds(kept, 1)
    assert holds(both[0], 4)
    after = held()
    again = filled(50, 5)
    assert holds(kept, 1)
    assert holds(both[0], 4)
    assert holds(again, 5)
    return [freed, after < 50]


@check
def new_memory_beside_memory_that_sleeps():
    old = filled(100, 1)
    ferro_alloc.sleep()
    new = [filled(mib, mib) for mib in (1, 2, 30, 60)]
    inner = ferro_alloc.sleep(keep="nothing")
    assert inner.device_bytes >= 93 * MIB
    assert held() == 0
    ferro_alloc.wake()
    for tensor in new:
        tensor.fill_(9)
    return [holds(old, 1), all(holds(t, 9) for t in new)]


@check
def views_modules_and_optimizers():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.randn(16, 64, device="cuda")

    def steps(count, naps):
        losses = []
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            loss = model(data).square().mean()
            loss.backward()
            optimizer.step()
            if naps:
                ferro_alloc.sleep()
                ferro_alloc.wake()
            losses.append(loss.item())
        return losses

    state = [{k: v.clone() for k, v in model.state_dict().items()}]
    plain = steps(6, False)
    model.load_state_dict(state[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return plain == steps(6, True)


@check
def graphs_stay_valid():
    # The graphs copy, because the simulated GPU computes nothing in graphs.
    statics = [filled(4, 1), filled(4, 2)]
    pool = torch.cuda.graph_pool_handle()
    graphs, results = [], []
    for static in statics:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            scratch = static.clone()
            results.append(scratch.clone())
            del scratch
        graphs.append(graph)
    launch = graphs[0].replay
    for graph in graphs:
        graph.replay()
    ferro_alloc.sleep()
    errors = []
    for replay in (graphs[0].replay, launch):
        with refused(ferro_alloc.FerroError, errors):
            replay()
    ferro_alloc.wake()
    kept = [holds(result, value) for value, result in enumerate(results, 1)]
    for result in results:
        result.zero_()
    for graph in graphs:
        graph.replay()
    again = [holds(result, value) for value, result in enumerate(results, 1)]
    statics[1].fill_(7)
    graphs[1].replay()
    assert holds(results[1], 7)
    launch()
    patched = [method.__module__ for method in (torch.cuda.CUDAGraph.replay, GRAPH.replay)]
    return [kept, again, [error.split(":")[0:2] for error in errors], "ferro" in str(patched)]


@check
def the_debug_mode_names_inputs_that_sleep():
    errors = []
    with ferro_alloc.graphs.debug():
        with ferro_alloc.tag("inputs"):
            static = filled(4, 1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = static.clone()
        ferro_alloc.sleep("inputs")
        with refused(ferro_alloc.graphs.GraphMisuseError, errors):
            graph.replay()
        ferro_alloc.wake("inputs")
        graph.replay()
        assert holds(result, 1)
    return ["'inputs', and which are asleep" in errors[0], "sleeping.py" in errors[0]]


@check
def a_graph_is_deleted_while_it_sleeps():
    graph = torch.cuda.CUDAGraph()
    static = filled(4, 1)
    with torch.cuda.graph(graph):
        result = static + 1
    graph.replay()
    ferro_alloc.sleep()
    del graph, result
    torch.cuda.empty_cache()
    ferro_alloc.wake()
    torch.cuda.empty_cache()
    _C.check_invariants(0)
    return [holds(static, 1), added()]


@check
def exclusive_groups_sleep():
    statics = [filled(4, 1), filled(4, 2)]
    pools = [ferro_alloc.graphs.graph_pool_handle() for _ in statics]
    group = ferro_alloc.graphs.exclusive(*pools)
    graphs, results = [], []
    with ferro_alloc.tag("group"):
        for static, pool in zip(statics, pools, strict=True):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                scratch = static.clone()
                results.append(scratch.clone().clone())
                del scratch
            graphs.append(graph)

    def are_right():
        right = []
        for graph, static, result in zip(graphs, statics, results, strict=True):
            graph.replay()
            right.append(torch.equal(result, static))
        return all(right)

    assert are_right()
    torch.cuda.empty_cache()
    full = held()
    slept = ferro_alloc.sleep("group")
    freed = full - held()
    errors = []
    with refused(ferro_alloc.FerroError, errors):
        graphs[1].replay()
    with refused(RuntimeError, errors), torch.cuda.graph(torch.cuda.CUDAGraph(), pool=pools[0]):
        pass
    with refused(ferro_alloc.FerroError, errors):
        group.leave(pools[0])
    ferro_alloc.wake("group")
    assert full == held(), (full, held())
    statics[0].fill_(5)
    good = [are_right(), are_right(), holds(results[0], 5)]
    everything = ferro_alloc.sleep()
    del graph, graphs[0]
    torch.cuda.empty_cache()
    ferro_alloc.wake()
    graphs[0].replay()
    _C.check_invariants(0)
    stays = [slept.staying, everything.staying]
    return [freed, stays, ["asleep" in error for error in errors], good, holds(results[1], 2)]


@check
def scratch_wakes_with_a_tag_whose_memory_was_freed():
    static = filled(4, 1)
    graph = torch.cuda.CUDAGraph()
    with ferro_alloc.tag("result"), torch.cuda.graph(graph):
        scratch = static.clone()
        result = scratch.clone()
        del scratch
    ferro_alloc.sleep("result")
    del result
    ferro_alloc.wake("result")
    graph.replay()
    torch.cuda.synchronize()
    return ferro_alloc.asleep().device_bytes


@check
def scratch_sleeps_with_the_last_of_its_tags():
    static = filled(4, 1)
    pool = torch.cuda.graph_pool_handle()
    graphs, results = [], []
    for tag in ("first", "second"):
        graph = torch.cuda.CUDAGraph()
        with ferro_alloc.tag(tag), torch.cuda.graph(graph, pool=pool):
            scratch = static.clone()
            results.append(scratch.clone())
            del scratch
        graphs.append(graph)
    torch.cuda.empty_cache()
    full = held()
    freed = []
    ferro_alloc.sleep("first")
    freed.append(full - held())
    ferro_alloc.sleep("second")
    freed.append(full - held())
    ferro_alloc.wake("first")
    freed.append(full - held())
    ferro_alloc.wake("second")
    right = []
    for graph, result in zip(graphs, results, strict=True):
        result.zero_()
        graph.replay()
        right.append(holds(result, 1))
    # The scratch wakes with a tag whose memory was freed, also one that slept before it.
    ferro_alloc.sleep("first")
    ferro_alloc.sleep("second")
    results[0] = None
    ferro_alloc.wake("first")
    freed.append(full - held())
    return [freed, right]


@check
def captures_while_everything_sleeps():
    static = filled(4, 1)
    earlier = torch.cuda.CUDAGraph()
    with torch.cuda.graph(earlier):
        static.clone()
    ferro_alloc.sleep()
    errors = []
    for _ in range(2):
        with refused(RuntimeError, errors), torch.cuda.graph(torch.cuda.CUDAGraph()):
            pass
    with refused(RuntimeError, errors), ferro_alloc.graphs.CaptureGuard():
        pass
    torch.cuda.set_stream(torch.cuda.default_stream())  # torch.cuda.graph left its own
    ferro_alloc.wake()
    random = torch.rand(4, device="cuda").numel()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        static.clone()
    is_ours = getattr(GRAPH.capture_begin, "__module__", "").startswith("ferro")
    return [["asleep" in error for error in errors], random, is_ours]


@check
def what_pytorch_computes_with_wakes_with_any_tag():
    """cuBLAS's workspaces and the generator's state, after everything slept."""
    with ferro_alloc.tag("weights"):
        weights = filled(4, 1)
    with ferro_alloc.tag("cache"):
        cache = filled(6, 2)
    square = torch.ones(64, 64, device="cuda")
    torch.mm(square, square)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        weights.clone()
    ferro_alloc.sleep()
    slept = ferro_alloc.asleep().device_bytes
    ferro_alloc.wake("weights")
    left = ferro_alloc.asleep().device_bytes
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        weights.clone()
    torch.mm(torch.ones(64, 64, device="cuda"), torch.ones(64, 64, device="cuda"))
    torch.cuda.synchronize()
    others = slept - 4 * MIB - left  # workspaces, and pages of small tensors
    ferro_alloc.wake()
    return holds(weights, 1), holds(cache, 2), others > 8 * MIB, left >= 6 * MIB


@check
def refused_captures_leave_the_random_generator():
    static = filled(4, 1)
    pools = [ferro_alloc.graphs.graph_pool_handle(name) for name in ("x", "y", "sealed")]
    group = ferro_alloc.graphs.exclusive(*pools[:2])
    kept = []
    for pool in pools[:2]:
        graph = torch.cuda.CUDAGraph()
        with ferro_alloc.tag("group"), torch.cuda.graph(graph, pool=pool):
            scratch = static.clone()
            kept.append((graph, scratch[: MIB // 4].clone()))
            del scratch
    errors = []
    numbers = []

    def captures(pool):
        for capture in (
            lambda: torch.cuda.graph(torch.cuda.CUDAGraph(), pool=pool),
            lambda: ferro_alloc.graphs.CaptureGuard(pool=pool),
        ):
            with refused(RuntimeError, errors), capture():
                pass
            torch.cuda.set_stream(torch.cuda.default_stream())
            numbers.append(torch.rand(4, device="cuda").numel())

    ferro_alloc.sleep("group")
    captures(pools[0])
    ferro_alloc.wake("group")
    sealed = ferro_alloc.graphs.capture_pool_for_handle(pools[2])
    sealed.seal()
    captures(pools[2])
    sealed.unseal()
    with torch.cuda.graph(torch.cuda.CUDAGraph(), pool=pools[2]):
        static.clone()
    del graph, kept, group
    for pool in pools:
        ferro_alloc.graphs.release_graph_pool_handle(pool)
    found = [next(w for w in ("asleep", "sealed", "?") if w in e or w == "?") for e in errors]
    return [found, numbers]


@check
def sizes_of_pools_that_sleep():
    pools = [torch.cuda.MemPool(), ferro_alloc.graphs.CapturePool()]
    with torch.cuda.use_mem_pool(pools[0]):
        with ferro_alloc.tag("a"):
            first = filled(10, 1)
        second = filled(20, 2)
    static = filled(4, 1)
    graph = torch.cuda.CUDAGraph()
    with ferro_alloc.tag("a"), torch.cuda.graph(graph, pool=pools[1].handle):
        scratch = static.clone()
        result = scratch.clone()
        del scratch

    def sizes():
        names = ("private_bytes", "live_bytes", "scratch_bytes", "asleep_bytes")
        found = {pool.handle: pool.sizes for pool in private_pools(0)}
        return [[getattr(found[pool], name) // MIB for name in names] for pool in handles]

    handles = [tuple(pools[0].id), tuple(pools[1].handle)]
    seen = [sizes()]
    ferro_alloc.sleep("a")
    seen.append(sizes())
    ferro_alloc.sleep()
    seen.append(sizes())
    ferro_alloc.wake()
    graph.replay()
    return [*seen, sizes() == seen[0], holds(first, 1), holds(second, 2), holds(result, 1)]


@check
def graphs_that_are_deleted_while_they_sleep_leave_nothing():
    static = filled(2, 1)
    torch.cuda.empty_cache()
    start = held()
    left = []
    for _ in range(3):
        pools = [ferro_alloc.graphs.graph_pool_handle() for _ in range(2)]
        group = ferro_alloc.graphs.exclusive(*pools)
        graph = torch.cuda.CUDAGraph()
        with ferro_alloc.tag("result"), torch.cuda.graph(graph, pool=pools[0]):
            scratch = static.clone()
            result = scratch[: MIB // 4].clone()
            del scratch
        ferro_alloc.sleep("result")
        del graph, result, group
        for pool in pools:
            ferro_alloc.graphs.release_graph_pool_handle(pool)
        torch.cuda.empty_cache()
        left.append(ferro_alloc.asleep().content_bytes)
        ferro_alloc.wake()
        torch.cuda.empty_cache()
        _C.check_invariants(0)
        left.append(held() - start)
    return left


@check
def pinning_memory_that_sleeps_is_refused():
    errors = []
    tensor = filled(4, 1)
    ferro_alloc.sleep()
    with refused(ValueError, errors):
        ferro_alloc.pin(tensor)
    with refused(ValueError, errors):
        ferro_alloc.pin((tensor.data_ptr() + MIB, MIB))
    return ["asleep" in error for error in errors]


@check
def pools_of_programs():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = filled(30, 1)
    outside = filled(30, 2)
    ferro_alloc.sleep()
    state = held()
    ferro_alloc.wake()
    good = holds(inside, 1) and holds(outside, 2)
    ferro_alloc.sleep()
    del inside, pool
    ferro_alloc.wake()
    torch.cuda.empty_cache()
    return [state, good, holds(outside, 2), added()]


@check
def what_cannot_sleep_is_named():
    pinned, other = filled(20, 1), filled(20, 2)
    errors = []
    with ferro_alloc.pin(pinned):
        torch.cuda.empty_cache()
        full = held()
        with refused(RuntimeError, errors):
            ferro_alloc.sleep(strict=True)
        assert held() == full
        assert holds(other, 2)
        slept = ferro_alloc.sleep()
        stays = {why: size // MIB for why, size in slept.staying.items()}
        assert holds(pinned, 1)
        ferro_alloc.wake()
    return [stays, held() == full, holds(other, 2), "pinned it" in errors[0]]


@check
def other_memory_on_the_same_pages():
    with ferro_alloc.tag("a"):
        mine = torch.full((1000,), 1.0, device="cuda")
    theirs = torch.full((1000,), 2.0, device="cuda")
    slept = ferro_alloc.sleep("a")
    return [slept.device_bytes, list(slept.staying), holds(mine, 1.0), holds(theirs, 2.0)]


@check
def too_little_memory_to_wake():
    old = filled(60, 1)
    ferro_alloc.sleep()
    # Memory of the host is behind the card's only where it is written.
    new = [filled(70, 2), torch.empty(900 * MIB, dtype=torch.uint8, device="cuda")]
    errors = []
    with refused(torch.OutOfMemoryError, errors):
        ferro_alloc.wake()
    _C.check_invariants(0)
    good = holds(new[0], 2)
    still = ferro_alloc.asleep().device_bytes // MIB - base
    del new
    ferro_alloc.wake()
    return [good, still, holds(old, 1), "are missing" in errors[0]]


@check
def a_failed_wake_names_the_holders():
    def failure_of(work):
        try:
            work()
        except torch.OutOfMemoryError as error:
            facts = ferro_alloc.explain(error)
            assert error.ferro_alloc == facts
            return str(error), facts
        return "", None

    torch.cuda.set_per_process_memory_fraction(0.5)
    with ferro_alloc.tag("old"):
        old = filled(300, 1)
    ferro_alloc.sleep("old")
    with ferro_alloc.tag("new"):
        new = torch.empty(350 * MIB, dtype=torch.uint8, device="cuda")
    text, facts = failure_of(lambda: ferro_alloc.wake("old"))
    woken = [facts.verdict, facts.request_bytes // MIB, facts.limit_bytes // MIB]
    woken += [[(tag.name, tag.live_bytes // MIB, tag.blocks) for tag in facts.tags]]
    woken += [facts.asleep_bytes // MIB, facts.saved_host_bytes // MIB]
    woken += [part in text for part in ("512.00 MiB is reached", "block: new", "Nothing woke")]
    text, facts = failure_of(lambda: filled(250, 3))
    asked = [facts.verdict, facts.asleep_bytes // MIB]
    asked += ["Asleep 300.00 MiB, which wake() will take again, with 300.00 MiB" in text]
    del new
    ferro_alloc.wake("old")
    text, facts = failure_of(lambda: filled(250, 3))
    awake = [facts.asleep_bytes, "Asleep" in text, [tag.name for tag in facts.tags], holds(old, 1)]
    torch.cuda.set_per_process_memory_fraction(1000 / 1024)
    return [woken, asked, awake]


@check
def unknown_tags():
    errors = []
    with ferro_alloc.tag("known tag"):
        known = filled(2, 1)
    slept = ferro_alloc.sleep("knwon tag")
    with refused(ferro_alloc.FerroError, errors):
        ferro_alloc.sleep(["known tag", "knwon tag"], strict=True)
    awake = ferro_alloc.asleep().device_bytes == 0
    ferro_alloc.sleep("known tag", strict=True)
    ferro_alloc.wake()
    names = ["'knwon tag'" in errors[0], "'known tag'" in errors[0]]
    return [slept.device_bytes, names, awake, holds(known, 1)]


@check
def captures_refuse():
    errors = []
    tensor, other = filled(2, 1), filled(2, 2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor.copy_(other)
        with refused(RuntimeError, errors):
            ferro_alloc.sleep()
        with refused(RuntimeError, errors):
            ferro_alloc.wake()
    graph.replay()
    return [["capture" in error for error in errors], holds(tensor, 2)]


@check
def wrong_arguments():
    errors = []
    for call in (
        lambda: ferro_alloc.sleep(keep="disk"),
        lambda: ferro_alloc.sleep(tags=3),
        lambda: ferro_alloc.sleep(tags=[]),
        lambda: ferro_alloc.wake(tags=[""]),
        lambda: ferro_alloc.wake(device="cuda:9"),
    ):
        with refused(ferro_alloc.FerroError, errors):
            call()
    return ["expected" in error for error in errors]


@check
def sharing_a_sleeping_tensor():
    errors = []
    tensor = filled(2, 1)
    ferro_alloc.sleep()
    with refused(RuntimeError, errors):
        tensor.untyped_storage()._share_cuda_()
    ferro_alloc.wake()
    return ["asleep" in errors[0], holds(tensor, 1)]


@check
def streams_and_threads():
    streams = [torch.cuda.Stream() for _ in range(3)]
    tensors = []
    for n, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            tensors.append(filled(10, n))
            tensors[-1].record_stream(torch.cuda.current_stream())
    used = filled(10, 7)
    used.record_stream(streams[0])
    ferro_alloc.sleep()
    del used
    freed = threading.Thread(target=tensors.pop)
    freed.start()
    freed.join()
    ferro_alloc.wake()
    return [holds(t, n) for n, t in enumerate(tensors)]


@check
def many_sleeps_leave_nothing():
    tensors = [filled(2, n) for n in range(6)]
    numbers = []
    for turn in range(200):
        ferro_alloc.sleep()
        state = (on_device(), ferro_alloc.asleep().host_bytes)
        ferro_alloc.wake()
        if turn in (0, 199):
            numbers.append((*state, held(), on_device()))
    ferro_alloc.release_host_memory()
    left = ferro_alloc.asleep().host_bytes
    return [numbers[0] == numbers[1], left, all(holds(t, n) for n, t in enumerate(tensors))]


@check
def pools_that_are_deleted_while_they_sleep_leave_no_host_memory():
    def turns():
        for _ in range(500):
            pool = torch.cuda.MemPool()
            with ferro_alloc.tag("a"), torch.cuda.use_mem_pool(pool):
                tensor = filled(2, 1)
            ferro_alloc.sleep("a")
            del tensor, pool
            ferro_alloc.wake("a")
            torch.cuda.empty_cache()
        return libc.mallinfo2().uordblks

    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = MallocInfo
    first = turns()
    # One record of each pool would be 80,000 bytes.
    return turns() - first < 20_000


print(json.dumps(seen))
sys.stdout.flush()
