"""The names and arguments of the published design of graph captures, in `ferro_alloc.graphs`."""

import gc
import weakref

from tests.python.feature_checks import KIB, MIB, check, error_of, filled, finish, take, words

import torch

from ferro_alloc import graphs
from ferro_alloc.graphs import CaptureGuard, CapturePool, DeviceScalar

ROUNDS = 100


def has(tensor, tag):
    torch.cuda.synchronize()
    return torch.equal(tensor.cpu().view(torch.int32), words(tag, tensor.nbytes))


def number_on(stream):
    """An integer in device memory, and a function that copies it in the order of the stream."""
    slot = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()

    def copied():
        with torch.cuda.stream(stream):
            return slot.clone()

    return slot, copied


# ---- captures


@check
def a_capture_begins_and_ends_by_its_stream():
    stream, source = torch.cuda.Stream(), filled(MIB, 3)
    torch.cuda.synchronize()
    graphs.begin_capture(stream)
    gc.collect()
    seen = [graphs.is_stream_capturing(stream), torch.cuda.current_stream() == stream]
    result = source.clone()
    graph = graphs.end_capture(stream)
    seen += [graphs.capture_status(stream).name, graph.stream == stream]
    graph.launch()
    return *seen, has(result, 3)


@check
def a_guard_takes_a_stream_first():
    stream, pool, source = torch.cuda.Stream(), CapturePool(), filled(MIB, 3)
    torch.cuda.synchronize()
    found = []
    for where in ((stream,), (stream, pool), (pool, stream), (stream, pool.handle), (None, pool)):
        with CaptureGuard(*where) as guard:
            on_it = torch.cuda.current_stream() == stream
            result = source.clone()
        guard.graph.launch()
        found.append((on_it, guard.graph.pool is pool, has(result, 3)))
    return found


@check
def the_order_of_arguments_so_far_still_works():
    stream, handle = torch.cuda.Stream(), graphs.graph_pool_handle("decode")
    found = []
    for begin in (
        lambda: graphs.begin_capture(handle),
        lambda: graphs.begin_capture(handle, stream=stream),
        lambda: graphs.begin_capture(pool=handle, stream=stream, capture_error_mode="relaxed"),
        lambda: graphs.begin_capture(None, stream=stream),
    ):
        capture = begin()
        take(KIB).zero_()
        graph = capture.end()
        found.append((capture.stream == stream, bool(graph.has_pool and graph.pool.name)))
    graphs.release_graph_pool_handle(handle)
    return found


@check
def a_stream_is_no_handle():
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    handle = graphs.graph_pool_handle()
    texts = [
        error_of(call)
        for call in (
            lambda: graphs.begin_capture(pool=stream),
            lambda: graphs.begin_capture(stream, stream=other),
            lambda: graphs.begin_capture(stream, other),
            lambda: graphs.begin_capture(handle, handle),
            lambda: graphs.begin_capture(stream, graphs.CaptureMode.RELAXED),
            lambda: graphs.begin_capture(stream.cuda_stream),
            lambda: CaptureGuard(stream, stream=other),
            lambda: graphs.capture_pool_for_handle(stream),
            lambda: graphs.graph_pool_handle(mem_pool=stream),
            lambda: graphs.release_graph_pool_handle(stream),
        )
    ]
    graphs.release_graph_pool_handle(handle)
    wrong = [text for kind, text in texts if kind != "FerroError" or "expected" not in text]
    return wrong, "stream=" in texts[0][1], "capture_error_mode=" in texts[4][1]


# ---- pools


@check
def a_pool_is_attached_at_the_end():
    stream, found = torch.cuda.Stream(), []
    for end in (
        lambda pool: graphs.end_capture(stream, pool),
        lambda pool: graphs.end_capture(stream, pool=pool),
        lambda pool: graphs.end_capture_with_pool(stream, pool),
        lambda pool: graphs.end_capture_with_pool(None, pool.handle),
    ):
        pool, source, result = CapturePool(), filled(MIB, 3), take(MIB)
        pool.record_buffer(source)
        torch.cuda.synchronize()
        graphs.begin_capture(stream)
        result.view(torch.int32).copy_(source)
        graph = end(pool)
        seen = [graph.pool is pool, graph.has_pool, graph.buffer_count]
        kept = weakref.ref(source)
        del pool, source
        gc.collect()
        junk = [filled(MIB, 9) for _ in range(16)]
        graph.launch()
        found.append([*seen, kept() is not None, has(result, 3), len(junk)])
        del graph
        gc.collect()
        found[-1].append(kept() is None)
    return found


@check
def an_attached_pool_lives_with_the_graph_alone():
    stream, pool, source, result = torch.cuda.Stream(), CapturePool(), filled(MIB, 3), take(MIB)
    pool.record_buffer(source)
    torch.cuda.synchronize()
    graphs.begin_capture(stream)
    result.view(torch.int32).copy_(source)
    graph = graphs.end_capture(stream, pool).cuda_graph
    kept = weakref.ref(source)
    del pool, source
    gc.collect()
    junk = [filled(MIB, 9) for _ in range(16)]
    graph.replay()
    found = [kept() is not None, has(result, 3), len(junk)]
    del graph
    gc.collect()
    return [*found, kept() is None]


@check
def only_the_pool_of_the_capture_is_attached():
    first, second = CapturePool("first"), CapturePool("second")
    capture = graphs.begin_capture(first)
    take(KIB).zero_()
    kind, text = error_of(lambda: capture.end(second))
    running = capture.status().name
    graph = capture.end(first)
    again = error_of(lambda: graphs.end_capture(capture, first))[0]
    return kind, "'first'" in text and "'second'" in text, running, graph.pool is first, again


def begun():
    capture = graphs.begin_capture()
    take(KIB).zero_()
    return capture


@check
def a_graph_without_a_pool_has_none():
    found = []
    with CaptureGuard() as guard:
        take(KIB).zero_()
    plain = torch.cuda.CUDAGraph()
    with torch.cuda.graph(plain):
        take(KIB).zero_()
    for graph in (guard.graph, graphs.CapturedGraph(plain), graphs.end_capture(begun())):
        again = graphs.CapturedGraph(graph.cuda_graph)
        found.append((graph.has_pool, graph.pool, graph.buffer_count, again.pool, repr(graph)[-5:]))
    return found


@check
def a_pool_has_a_constructor():
    pools = [CapturePool() for _ in range(3)]
    handles = {pool.handle for pool in pools}
    named = CapturePool("decode")
    found = graphs.capture_pool_for_handle(named.handle) is named
    wrong = error_of(lambda: CapturePool(7))
    handle = named.handle
    del named
    gc.collect()
    gone = graphs.capture_pool_for_handle(handle) is None
    return len(handles), found, wrong[0], "expected" in wrong[1], gone


@check
def a_handle_is_made_of_its_number():
    handle = graphs.graph_pool_handle("decode")
    made = graphs.PoolHandle(handle[1])
    pool = graphs.capture_pool_for_handle(made)
    same = made == handle == graphs.PoolHandle(tuple(handle)) and made.id == handle
    wrong = [
        error_of(lambda value=value: graphs.PoolHandle(value)) for value in (-1, "1", True, None)
    ]
    graphs.release_graph_pool_handle(made)
    texts = [kind == "FerroError" and "expected" in text for kind, text in wrong]
    return same, pool.name, texts, graphs.capture_pool_for_handle(handle) is None


@check
def the_handle_of_no_pool_is_no_pool():
    """PyTorch captures without a pool when it is given this one."""
    source, found = filled(MIB, 3), []
    torch.cuda.synchronize()
    for none in ((0, 0), graphs.PoolHandle(0)):
        with CaptureGuard(none) as guard:
            result = source.clone()
        guard.graph.launch()
        found.append((guard.graph.pool, has(result, 3)))
    graphs.begin_capture(stream := torch.cuda.Stream())
    take(KIB).zero_()
    found.append(graphs.end_capture(stream, (0, 0)).pool)
    known = graphs.capture_pool_for_handle((0, 0))
    kind, text = error_of(lambda: graphs.graph_pool_handle("decode", mem_pool=(0, 0)))
    return found, known, kind, "no pool" in text


# ---- launches and updates


@check
def a_launch_is_on_the_stream_of_its_capture():
    """Work on that stream, and on the current one, before and after the launch is in order."""
    stream, source, result = torch.cuda.Stream(), take(MIB), take(MIB)
    inputs = [filled(MIB, tag) for tag in range(8)]
    torch.cuda.synchronize()
    with CaptureGuard(stream) as guard:
        result.copy_(source)
    there, here = [], []
    for tag, given in enumerate(inputs):
        on = stream if tag % 2 else torch.cuda.current_stream()
        with torch.cuda.stream(on):
            source.view(torch.int32).copy_(given)
        guard.graph.launch()
        with torch.cuda.stream(stream):
            there.append(result.clone())
        here.append(result.clone())
    right = [has(there[tag], tag) and has(here[tag], tag) for tag in range(8)]
    return right.count(True), guard.graph.stream == stream, guard.graph.num_replays


@check
def a_launch_on_another_stream_leaves_the_stream_of_the_capture():
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    source, result = filled(MIB, 3), take(MIB)
    torch.cuda.synchronize()
    with CaptureGuard(stream) as guard:
        result.view(torch.int32).copy_(source)
    guard.graph.launch(other)
    other.synchronize()
    return has(result, 3), error_of(lambda: guard.graph.launch(3))[0]


@check
def a_scalar_is_bound_to_a_stream():
    stream = torch.cuda.Stream()
    scalar = DeviceScalar(-1, torch.int64, stream)
    slot, copied = number_on(stream)
    with CaptureGuard(stream) as guard:
        slot.copy_(scalar.tensor)
    there, here, direct = [], [], []
    for value in range(ROUNDS):
        scalar.update(value)
        direct.append(scalar.tensor.clone())
        guard.graph.launch()
        there.append(copied())
        here.append(slot.clone())
    torch.cuda.synchronize()
    values = [[int(copy) for copy in copies] for copies in (there, here, direct)]
    return [found == list(range(ROUNDS)) for found in values], scalar.stream == stream


@check
def a_graph_of_no_stream_reads_a_bound_scalar():
    scalar = DeviceScalar(-1, torch.int64, torch.cuda.Stream())
    slot, _ = number_on(torch.cuda.current_stream())
    with CaptureGuard() as guard:
        slot.copy_(scalar.tensor)
    seen = []
    for value in range(ROUNDS):
        scalar.update(value)
        guard.graph.launch()
        seen.append(slot.clone())
    torch.cuda.synchronize()
    return [int(copy) for copy in seen] == list(range(ROUNDS)), guard.graph.stream


@check
def a_scalar_is_updated_on_another_stream():
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    scalar = DeviceScalar(1, torch.int32, stream)
    scalar.update(5, other)
    other.synchronize()
    return int(scalar.tensor), error_of(lambda: scalar.update(1, stream=7))[0]


@check
def an_update_of_a_bound_scalar_in_a_capture_belongs_to_the_graph():
    stream = torch.cuda.Stream()
    scalar = DeviceScalar(0.0, torch.float64, stream)
    found = []
    for where in ((stream,), ()):
        with CaptureGuard(*where) as guard:
            scalar.update(2.5)
        scalar.update(1.0)
        before = float(scalar.tensor)
        guard.graph.launch()
        found.append((before, float(scalar.tensor)))
    return found


@check
def a_launch_that_pytorch_refuses_in_a_capture_leaves_the_capture_whole():
    stream, source, result = torch.cuda.Stream(), filled(MIB, 3), take(MIB)
    torch.cuda.synchronize()
    with CaptureGuard(stream) as inner:
        source.clone()
    with CaptureGuard() as outer:
        kind, _ = error_of(inner.graph.launch)
        result.view(torch.int32).copy_(source)
    outer.graph.launch()
    return kind, has(result, 3), inner.graph.num_replays, graphs.is_stream_capturing(stream)


@check
def a_scalar_takes_its_arguments_in_either_order():
    stream = torch.cuda.Stream()
    made = [
        DeviceScalar(5, torch.int64, stream),
        DeviceScalar(torch.int64, 5, stream),
        DeviceScalar(5, torch.int64),
        DeviceScalar(torch.int64, 5, device=0),
        DeviceScalar(dtype=torch.int64, value=5),
        DeviceScalar(value=5, dtype=torch.int64, stream=stream),
    ]
    found = [(int(scalar.tensor), scalar.stream == stream) for scalar in made]
    wrong = [
        error_of(lambda: DeviceScalar(5, 5)),
        error_of(lambda: DeviceScalar(5, torch.int64, 7)),
        error_of(lambda: DeviceScalar(5, stream, torch.int64)),
    ]
    return found, [kind == "FerroError" and "expected" in text for kind, text in wrong]


# ---- callables


@check
def a_callable_in_the_order_of_the_design_is_a_clear_error():
    stream = torch.cuda.Stream()
    for mode in (graphs.CaptureMode.RELAXED, "relaxed"):
        kind, text = error_of(lambda mode=mode: graphs.make_graphed_callable(stream, mode, print))
    first_line = graphs.make_graphed_callable.__doc__.splitlines()[0]
    said = [
        word in text for word in ("expected a function first", "stream=", "capture_error_mode=")
    ]
    return kind, said, "num_warmup_iters" in first_line and "3" in first_line


@check
def a_callable_of_another_device_is_a_clear_error():
    sample = torch.zeros(4, device="cuda:1")

    def graphed(**where):
        return graphs.make_graphed_callable(lambda x: x.clone(), (sample,), **where)

    kind, text = error_of(graphed)
    by_stream = graphed(stream=torch.cuda.Stream(1)).graph.device
    with torch.cuda.device(1):
        by_device = graphed().graph.device
    return kind, "on device 1" in text and "stream=" in text, by_stream, by_device


@check
def a_callable_warms_up_three_times():
    calls = []
    graphs.make_graphed_callable(lambda: calls.append(take(KIB).zero_()), ())
    return len(calls)


finish()
