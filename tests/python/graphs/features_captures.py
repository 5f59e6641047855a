"""Captures, captured graphs, device scalars and graphed callables of ferro_alloc.graphs."""

import contextlib
import decimal
import fractions
import gc
import re
import sys
import threading
import time
import weakref

import numpy

from tests.python.feature_checks import (
    FERRO,
    KIB,
    MIB,
    check,
    error_of,
    filled,
    finish,
    take,
    words,
)

import torch

from ferro_alloc import graphs, sim
from ferro_alloc.graphs import CaptureGuard, CaptureStatus, DeviceScalar


def read(tensor):
    torch.cuda.synchronize()
    return tensor.cpu().view(torch.int32)


def has(tensor, tag):
    return bool((read(tensor) == words(tag, tensor.nbytes)).all())


def calls(name):
    return sim.counters()[name].calls if name in sim.counters() else 0


@contextlib.contextmanager
def refused(name):
    sim.fault(name, call=1)
    try:
        yield
    finally:
        sim.clear_faults()


def usable():
    """Whether streams, random numbers, allocations and captures are as before any capture."""
    source, seen = filled(MIB, 5), []
    seen.append(torch.cuda.current_stream() == torch.cuda.default_stream())
    seen.append(not graphs.is_stream_capturing())
    torch.rand(4, device="cuda")
    with CaptureGuard() as guard:
        result = source.clone()
    guard.graph.launch()
    seen.append(has(result, 5))
    torch.cuda.synchronize()
    return all(seen)


def spoiled():
    """A capture that a forbidden call invalidates."""
    with CaptureGuard():
        take(MIB)
        torch.cuda.synchronize()


@check
def statuses():
    seen = [graphs.capture_status().name]
    guard = CaptureGuard()
    seen.append(guard.status().name)
    other = torch.cuda.Stream()
    try:
        with guard:
            seen += [guard.status().name, graphs.capture_status().name]
            seen += [graphs.is_stream_capturing(), graphs.is_stream_capturing(other)]
            error_of(torch.cuda.synchronize)
            seen += [guard.status().name, guard.status().is_capturing]
            seen += [guard.status().is_invalidated, graphs.is_stream_capturing()]
            seen.append(torch.cuda.is_current_stream_capturing())
            raise KeyError("stop")
    except KeyError:
        seen.append(guard.status().name)
    return seen


@check
def the_statuses_are_three():
    return [(s.name, s.is_capturing, s.is_invalidated) for s in CaptureStatus]


@check
def a_graph_runs_when_it_is_launched():
    source = filled(MIB, 3)
    with CaptureGuard() as guard:
        result = source.clone()
    graph = guard.graph
    counts = [graph.num_replays]
    graph.launch()
    good = [has(result, 3)]
    source.copy_(words(9, MIB))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph.launch(side)
    counts.append(graph.num_replays)
    return counts, good, has(result, 9), guard.status().name


@check
def a_launch_that_is_refused_does_not_count():
    source = filled(MIB, 3)
    with CaptureGuard() as guard:
        result = source.clone()
    with refused("cuGraphLaunch"):
        kind, _ = error_of(guard.graph.launch)
    counts = [guard.graph.num_replays]
    guard.graph.launch()
    return "Error" in kind, counts, guard.graph.num_replays, has(result, 3)


@check
def it_is_uploaded_once():
    source = filled(MIB, 3)
    with CaptureGuard() as guard:
        source.clone()
    graph, before = guard.graph, calls("cuGraphUpload")
    seen = [graph.is_uploaded]
    graph.upload()
    graph.upload(torch.cuda.Stream())
    return seen, graph.is_uploaded, calls("cuGraphUpload") - before, graph.num_replays


@check
def a_graph_of_torch_has_both_faces():
    source, graph = filled(MIB, 3), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = source.clone()
    captured = graphs.CapturedGraph(graph)
    captured.launch()
    good = has(result, 3)
    source.copy_(words(4, MIB))
    captured.cuda_graph.replay()
    same = captured.cuda_graph is graph and captured.pool is None
    handle = tuple(graph.pool())
    del graph
    gc.collect()
    source.copy_(words(5, MIB))
    captured.launch()
    good = good and has(result, 5)
    counts = captured.num_replays
    del captured
    gc.collect()
    return same, good, counts, graphs.capture_pool_for_handle(handle) is None


@check
def objects_that_are_not_graphs_are_refused():
    return [
        error_of(lambda: graphs.CapturedGraph(7))[0],
        error_of(lambda: graphs.CapturedGraph(torch.cuda.CUDAGraph()))[0] != "",
    ]


@check
def a_capture_begins_and_ends():
    source = filled(MIB, 3)
    handle = graphs.graph_pool_handle("decode")
    capture = graphs.begin_capture(handle, capture_error_mode="relaxed")
    seen = [capture.status().name, capture.pool.name, torch.cuda.current_stream() == capture.stream]
    result = source.clone()
    graph = graphs.end_capture(capture)
    seen += [capture.status().name, torch.cuda.current_stream() == torch.cuda.default_stream()]
    again = error_of(capture.end)[0]
    capture.discard()
    graph.launch()
    graphs.release_graph_pool_handle(handle)
    return seen, again, has(result, 3), graph.pool.name


@check
def a_capture_is_ended_by_its_stream():
    source, stream, other = filled(MIB, 3), torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    refused = [error_of(lambda: graphs.end_capture(stream))[0]]
    outer = graphs.begin_capture(stream=stream)
    first = source.clone()
    inner = graphs.begin_capture(stream=other)
    second = source.clone()
    made = [graphs.end_capture(), graphs.end_capture(stream)]
    refused += [error_of(lambda end=end: graphs.end_capture(end))[0] for end in (stream, outer, 3)]
    for graph in made:
        graph.launch()
    states = outer.status().name, inner.status().name
    return refused, states, has(first, 3), has(second, 3), made[0].has_pool, usable()


@check
def objects_a_graph_keeps_live_as_long_as_the_graph():
    with CaptureGuard() as guard:
        take(MIB)
    kept = take(MIB)
    alive = weakref.ref(kept)
    guard.graph.keep(kept)
    del kept
    seen = [alive() is not None]
    del guard
    gc.collect()
    return [*seen, alive() is None]


@check
def a_capture_that_is_dropped_is_discarded():
    capture = graphs.begin_capture()
    stream = capture.stream
    take(MIB)
    del capture
    gc.collect()
    return graphs.is_stream_capturing(stream), usable()


@check
def a_body_that_raises_discards_its_capture():
    handle = graphs.graph_pool_handle("decode")
    guard = CaptureGuard(handle)

    def fail():
        with guard:
            take(3 * MIB)
            raise KeyError("stop")

    usable()  # allocates what PyTorch keeps for the graphs of a stream
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    kind, _ = error_of(fail)
    no_graph = error_of(lambda: guard.graph)[0]
    entered_twice = error_of(guard.__enter__)[0]
    graphs.release_graph_pool_handle(handle)
    torch.cuda.empty_cache()
    left = torch.cuda.memory_reserved() - before
    gone = graphs.capture_pool_for_handle(handle) is None
    return kind, no_graph, entered_twice, left, gone, usable()


@check
def a_capture_that_is_invalidated_leaves_all_usable():
    kind, text = error_of(spoiled)
    return "Error" in kind, "captur" in text, usable()


@check
def a_stream_of_any_type_is_taken():
    """Each function that takes a stream also takes a torch.Stream of a CUDA device."""
    stream, other = torch.Stream(device="cuda"), torch.Stream(device="cuda")
    value = DeviceScalar(5, torch.int32, stream)
    source, copy = filled(MIB, 2), take(MIB)
    torch.cuda.synchronize()
    seen = []
    for begin in (
        lambda: graphs.begin_capture(stream),
        lambda: graphs.begin_capture(stream, graphs.CapturePool()),
        lambda: graphs.begin_capture(stream=stream),
    ):
        begin()
        seen.append(graphs.is_stream_capturing(stream))
        copy.copy_(source.view(torch.uint8))
        graph = graphs.end_capture(stream)
        same = graph.stream.stream_id == stream.stream_id
        seen += [graphs.capture_status(stream) is CaptureStatus.NONE, same]
    for guard in (CaptureGuard(stream), CaptureGuard(stream=stream)):
        with guard:
            copy.copy_(source.view(torch.uint8))
    for where in (None, stream, other):
        copy.zero_()
        torch.cuda.synchronize()
        guard.graph.upload(where)
        guard.graph.launch(where)
        seen.append(has(copy, 2))
        value.update(7, where)
        torch.cuda.synchronize()
        seen.append(value.tensor.item() == 7)
        value.update(5)
    graphed = graphs.make_graphed_callable(lambda x: x.clone(), (source,), stream=stream)
    seen.append(has(graphed(source), 2))
    host = torch.Stream(device="cpu")
    refusals = [
        error_of(lambda: graphs.begin_capture(host)),
        error_of(lambda: CaptureGuard(stream, other)),
        error_of(lambda: guard.graph.launch(host)),
        error_of(lambda: value.update(1, host)),
    ]
    return seen.count(True), len(seen), [kind for kind, _ in refusals]


@check
def a_stream_that_does_not_rejoin_leaves_all_usable():
    side = torch.cuda.Stream()
    target = take(KIB)

    def fail():
        with CaptureGuard() as guard:
            side.wait_stream(guard._capture.stream)
            with torch.cuda.stream(side):
                target.zero_()

    kind, _ = error_of(fail)
    return "Error" in kind, graphs.is_stream_capturing(side), usable()


@check
def a_capture_that_cannot_begin_leaves_all_usable():
    with refused("cuStreamBeginCapture"):
        kind, _ = error_of(graphs.begin_capture)
    return "Error" in kind, usable()


@check
def captures_nest_on_separate_streams():
    source, stream, other = filled(MIB, 3), torch.cuda.Stream(), torch.cuda.Stream()
    with CaptureGuard(stream=stream) as outer:
        first = source.clone()
        refused = error_of(lambda: graphs.begin_capture(stream=stream))[0]
        with CaptureGuard(stream=other) as inner:
            second = source.clone()
        third = first.clone()
    inner.graph.launch()
    outer.graph.launch()
    return refused, has(first, 3), has(second, 3), has(third, 3), usable()


@check
def modes_are_checked():
    seen = []
    for mode in (*graphs.CaptureMode, "global", "thread_local", "relaxed"):
        with CaptureGuard(capture_error_mode=mode) as guard:
            take(KIB).zero_()
        guard.graph.launch()
        seen.append(guard.graph.num_replays)
    return (
        seen,
        error_of(lambda: CaptureGuard(capture_error_mode="local")),
        error_of(lambda: graphs.begin_capture(stream=3))[0],
    )


@check
def captures_of_several_threads_run_side_by_side():
    barrier, results, problems = threading.Barrier(3), {}, []

    def work(tag):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                source = filled(MIB, tag)
                barrier.wait()
                with CaptureGuard() as guard:
                    barrier.wait()
                    halfway = source.clone()
                    barrier.wait()
                    result = halfway.clone()
                barrier.wait()
                guard.graph.launch()
                stream.synchronize()
                results[tag] = has(result, tag)
        except Exception as error:
            problems.append(repr(error))
            barrier.abort()

    threads = [threading.Thread(target=work, args=(tag,)) for tag in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(results.items()), problems


@check
def other_threads_wait_while_a_graph_registers():
    """PyTorch 2.11 crashes where threads register graphs side by side. It registers one before it
    asks for memory, and a refused mode does not get so far."""
    with CaptureGuard():
        take(KIB).zero_()
    ran, may_run = [], threading.Lock()
    may_run.acquire()
    thread = threading.Thread(target=lambda: ran.append(may_run.acquire()))
    thread.start()
    before = sys.getswitchinterval()
    sys.setswitchinterval(100)  # only a call that releases the GIL lets the other thread run
    try:
        may_run.release()
        until = time.monotonic() + 0.1
        while time.monotonic() < until:  # by now it waits for the GIL
            pass
        graph = torch.cuda.CUDAGraph()
        refused = error_of(lambda: graph.capture_begin(capture_error_mode="nonsense"))[0]
        waited = not ran
    finally:
        sys.setswitchinterval(before)
    thread.join()
    return refused, waited or torch.__version__ >= "2.12", ran


@check
def a_second_capture_of_a_stream_is_only_refused():
    """With PyTorch 2.11 alone, the destructor of the refused graph ends the process."""
    if torch.__version__ >= "2.12":
        return "RuntimeError", True
    with CaptureGuard():
        graph = torch.cuda.CUDAGraph()
        refused = error_of(graph.capture_begin)[0]
        del graph
        take(KIB).zero_()
    return refused, usable()


@check
def captures_and_callables_have_a_text():
    capture = graphs.begin_capture(graphs.graph_pool_handle())
    texts = [repr(capture)]
    take(KIB).zero_()
    capture.end()
    texts.append(repr(capture))
    for function in (take, torch.nn.Identity()):
        texts.append(repr(graphs.make_graphed_callable(function, (KIB,))))
    return [re.sub(r"\(\d+, \d+\)", "(...)", text) for text in texts]


def in_another_thread(function):
    results = []

    def call():
        try:
            results.append(function())
        except Exception as error:
            results.append(error.with_traceback(None))  # which would keep the capture

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return results[0]


@check
def another_thread_ends_only_relaxed_captures():
    found = []
    for mode in ("thread_local", "global", "relaxed"):
        for stream in (None, torch.cuda.Stream()):
            source = filled(MIB, 3)
            capture = graphs.begin_capture(stream, capture_error_mode=mode)
            result = source.clone()
            before = torch.cuda.current_stream()
            ended = in_another_thread(capture.end)
            kind = type(ended).__name__
            if kind == "FerroError":
                # It runs on, and its own thread ends it.
                found.append((kind, capture.status().name, str(ended)[:30]))
                ended = capture.end()
            else:
                # Only this thread can choose its current stream.
                found.append((kind, torch.cuda.current_stream() == before))
                torch.cuda.set_stream(torch.cuda.default_stream())
            ended.launch()
            found.append(has(result, 3))
            del capture, ended, result
    return found, usable()


@check
def captures_that_another_thread_discards_or_drops():
    """The next capture of their own thread ends what that thread could not end."""
    found = []
    for mode in ("thread_local", "relaxed"):
        for way in ("discarded", "dropped", "collected"):
            held = [graphs.begin_capture(capture_error_mode=mode)]
            stream, gone = held[0].stream, weakref.ref(held[0])
            refused = None
            if way == "discarded":
                refused = in_another_thread(held[0].discard) is not None
            elif way == "collected":
                held[0].itself = held[0]
                held.clear()
                in_another_thread(gc.collect)
            in_another_thread(held.clear)
            runs_on = graphs.is_stream_capturing(stream)
            torch.cuda.set_stream(torch.cuda.default_stream())
            with CaptureGuard():
                take(KIB).zero_()
            found.append([mode, way, refused, runs_on, gone() is None])
    return found, usable()


@check
def captures_end_in_any_order():
    default, streams = torch.cuda.current_stream(), [torch.cuda.Stream() for _ in range(3)]
    seen = []
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0), (0, 2, 1), (2, 0, 1)):
        sources, results = [filled(MIB, tag) for tag in range(3)], []
        for source, stream in zip(sources, streams, strict=True):
            graphs.begin_capture(stream)
            results.append(source.clone())
        for graph in [graphs.end_capture(streams[which]) for which in order]:
            graph.launch()
        values = [has(result, tag) for tag, result in enumerate(results)]
        seen.append((values, torch.cuda.current_stream() == default))
    # Another stream than that of the capture is current at its end, and stays it.
    capture = graphs.begin_capture(streams[0])
    torch.cuda.set_stream(streams[1])
    capture.end()
    seen.append(torch.cuda.current_stream() == streams[1])
    torch.cuda.set_stream(default)
    return seen, usable()


@check
def captures_on_two_devices_run_side_by_side():
    if torch.cuda.device_count() < 2:
        return None
    streams = [torch.cuda.Stream(device=index) for index in (0, 1)]
    sources = [filled(MIB, 3), words(4, MIB).to("cuda:1")]
    with CaptureGuard(stream=streams[1]) as outer:
        where = [torch.cuda.current_device()]
        first = sources[1].clone()
        with CaptureGuard(stream=streams[0]) as inner:
            where.append(torch.cuda.current_device())
            second = sources[0].clone()
        where.append(torch.cuda.current_device())
        third = first.clone()
    where.append(torch.cuda.current_device())
    graphs_of = inner.graph, outer.graph
    wrong = error_of(lambda: graphs_of[0].launch(streams[1]))[0]
    for graph in graphs_of:
        graph.launch()
    torch.cuda.synchronize(1)
    places = [graph.device for graph in graphs_of]
    scalar = DeviceScalar(torch.int32, 5, device=1)
    scalar.update(6)
    wrong = [wrong, error_of(lambda: scalar.update(7, streams[0]))[0]]
    values = has(second, 3), has(third, 4), int(scalar.tensor.cpu()), str(scalar.tensor.device)
    return where, places, wrong, *values


@check
def a_thousand_failed_captures_leave_nothing():
    def fail(number):
        with CaptureGuard():
            take(MIB)
            if number % 8 == 7:  # each waits for 10 ms under torch 2.11
                torch.cuda.synchronize()
            raise KeyError("stop")

    def held():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        counts = {name: count.calls for name, count in sim.counters().items()}
        pairs = (
            ("cuMemCreate", "cuMemRelease"),
            ("cuMemMap", "cuMemUnmap"),
            ("cuEventCreate", "cuEventDestroy_v2"),
            ("cuGraphInstantiateWithFlags", "cuGraphExecDestroy"),
        )
        left = [counts.get(made, 0) - counts.get(gone, 0) for made, gone in pairs]
        return [sim.memory()[0].allocated, torch.cuda.memory_reserved(), *left]

    # As many captures as may have outstanding points at one time.
    for number in range(100):
        error_of(lambda number=number: fail(number))
    before, kinds = held(), set()
    for number in range(1000 if FERRO else 100):  # each leaves a page allocated under native
        kinds.add(error_of(lambda number=number: fail(number))[0])
    after = held()
    return sorted(kinds), before == after, usable()


# ---- device scalars


VALUES = {
    "bool": True,
    "uint8": 200,
    "uint16": 60_000,
    "uint32": 4_000_000_000,
    "uint64": (1 << 64) - 1,
    "int8": -3,
    "int16": -300,
    "int32": 70_000,
    "int64": -(1 << 40),
    "float16": 1.5,
    "bfloat16": -2.5,
    "float32": 0.1,
    "float64": 0.1,
    "complex64": 1 + 2j,
}


@check
def scalars_of_every_type():
    wrong = []
    for name, value in VALUES.items():
        dtype = getattr(torch, name)
        scalar = DeviceScalar(dtype, 0)
        address = scalar.tensor.data_ptr()
        scalar.update(value)
        expected = torch.tensor(value, dtype=dtype)
        if (
            not scalar.tensor.cpu().equal(expected)
            or scalar.tensor.data_ptr() != address
            or scalar.tensor.shape != ()
            or scalar.dtype is not dtype
        ):
            wrong.append(name)
    return wrong


@check
def scalars_of_numbers_that_are_not_pythons():
    scalar = DeviceScalar(numpy.int64(3), torch.float64)
    values = [float(scalar.tensor)]
    for value in (numpy.float32(1.5), numpy.uint8(200), fractions.Fraction(1, 4), numpy.float64(2)):
        scalar.update(value)
        values.append(float(scalar.tensor))
    plain = DeviceScalar(numpy.complex64(1 + 2j), torch.complex64)
    return values, [plain.tensor.item().real, plain.tensor.item().imag]


@check
def what_a_scalar_refuses():
    small = DeviceScalar(torch.int8, 1)
    made = []
    with CaptureGuard():
        take(KIB).zero_()
        made.append(error_of(lambda: DeviceScalar(torch.int32, 1))[0])
    return [
        error_of(lambda: DeviceScalar(torch.complex128, 1))[0],
        {
            error_of(lambda no=no: DeviceScalar(no, torch.int32))[0]
            for no in ([1], "1", None, decimal.Decimal(1))
        }
        == {"FerroError"},
        error_of(lambda: small.update(300))[0],
        error_of(lambda: small.update(1 << 70))[0],
        error_of(lambda: small.update("1"))[0],
        error_of(lambda: small.update(1, stream=3))[0],
        error_of(lambda: DeviceScalar(torch.int8, 300))[0],
        error_of(lambda: DeviceScalar(torch.float32, 1e300))[0],
        error_of(lambda: DeviceScalar(torch.float16, 70000.0))[0],
        *made,
        int(small.tensor.cpu()),
    ]


@check
def each_launch_reads_the_value_before_it():
    """The host runs far ahead of the device, on the stream of the launches and on another one."""
    scalar = DeviceScalar(torch.int64, -1)
    slot = torch.zeros((), dtype=torch.int64, device="cuda")
    with CaptureGuard() as guard:
        slot.copy_(scalar.tensor)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    copies = []
    main = torch.cuda.current_stream()
    for value in range(200):
        stream, other = (side, main) if value % 3 == 0 else (main, side)
        scalar.update(value, side if stream is side else None)
        guard.graph.launch(stream)
        with torch.cuda.stream(stream):
            copies.append(slot.clone())
        other.wait_stream(stream)
    torch.cuda.synchronize()
    return [int(copy.cpu()) for copy in copies] == list(range(200))


@check
def the_memory_of_a_scalar_outlives_its_updates():
    side = torch.cuda.Stream()
    scalar = DeviceScalar(torch.int32, 0)
    for _ in range(50):
        scalar.update(7, side)
    del scalar
    taken = [filled(4, 0) for _ in range(8)]
    torch.cuda.synchronize()
    return [int(tensor.cpu()) for tensor in taken]


@check
def an_update_in_a_capture_belongs_to_the_graph():
    scalar = DeviceScalar(torch.float64, 0.0)
    with CaptureGuard() as guard:
        scalar.update(2.5)
    before = float(scalar.tensor.cpu())
    scalar.update(1.0)
    guard.graph.launch()
    return before, float(scalar.tensor.cpu())


# ---- graphed callables


@check
def a_callable_runs_on_its_arguments():
    def function(pair, number):
        return {"first": pair[0].clone(), "second": pair[1].clone(), "number": number}

    samples = (filled(MIB, 1), filled(KIB, 2))
    graphed = graphs.make_graphed_callable(function, (samples, 3))
    seen = []
    for tag in (5, 6):
        out = graphed((filled(MIB, tag), filled(KIB, tag + 1)), 3)
        seen += [has(out["first"], tag), has(out["second"], tag + 1), out["number"]]
    errors = [
        error_of(lambda: graphed(samples, 4)),
        error_of(lambda: graphed(samples)),
        error_of(lambda: graphed((samples[0], samples[0]), 3)),
        error_of(lambda: graphed((samples[0], 1), 3)),
    ]
    kinds = [kind for kind, _ in errors]
    return seen, kinds, graphed.graph.num_replays, calls("cuGraphLaunch") > 0


@check
def a_callable_takes_a_stream_and_keywords():
    seen = []

    def function(tensor, *, scale, bias=None):
        seen.append(torch.cuda.current_stream())
        return tensor.clone(), bias.clone(), scale

    stream = torch.cuda.Stream()
    graphed = graphs.make_graphed_callable(
        function,
        (filled(MIB, 1),),
        {"scale": 3, "bias": filled(KIB, 2)},
        stream=stream,
        num_warmup_iters=1,
    )
    first, second, scale = graphed(filled(MIB, 5), bias=filled(KIB, 6), scale=3)
    good = has(first, 5), has(second, 6), scale
    refused = [
        error_of(lambda: graphed(filled(MIB, 5), scale=3))[0],
        error_of(lambda: graphed(filled(MIB, 5), scale=4, bias=filled(KIB, 6)))[0],
        error_of(lambda: graphs.make_graphed_callable(function, (), stream=3))[0],
    ]
    return good, seen == [stream, stream], refused


@check
def results_of_a_callable_have_no_gradient_function():
    weight = torch.ones(4, device="cuda", requires_grad=True)
    sample = torch.ones(4, device="cuda", requires_grad=True)
    graphed = graphs.make_graphed_callable(lambda x: {"all": [x.view(2, 2), weight]}, (sample,))
    results = graphed(torch.ones(4, device="cuda", requires_grad=True))["all"]
    found = [(result.requires_grad, result.grad_fn is None) for result in results]
    return found, weight.requires_grad, sample.requires_grad


@check
def devices_are_named_as_torch_does():
    forms = (None, 0, "cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0))
    with CaptureGuard() as guard:
        take(KIB).zero_()
    graph = guard.graph.cuda_graph
    wrong = ("cpu", "cuda:9", 9, -1, True, 1.5, "nonsense", torch.device("cpu"))
    return (
        [str(DeviceScalar(torch.int32, 1, device=form).tensor.device) for form in forms],
        [graphs.CapturedGraph(graph, device=form).device for form in forms],
        {error_of(lambda form=form: DeviceScalar(torch.int32, 1, device=form))[0] for form in wrong}
        == {"FerroError"},
        {error_of(lambda form=form: graphs.CapturedGraph(graph, device=form))[0] for form in wrong}
        == {"FerroError"},
    )


@check
def a_callable_that_raises_captures_nothing():
    handle = graphs.graph_pool_handle()
    runs = []

    def function(tensor):
        runs.append(torch.cuda.is_current_stream_capturing())
        copy = tensor.clone()
        if runs[-1]:
            raise KeyError("stop")
        return copy

    kind, _ = error_of(
        lambda: graphs.make_graphed_callable(
            function, (filled(MIB, 1),), pool=handle, num_warmup_iters=2
        )
    )
    graphs.release_graph_pool_handle(handle)
    gone = graphs.capture_pool_for_handle(handle) is None
    count = len(runs)
    wrong = [
        error_of(lambda: graphs.make_graphed_callable(function, (), num_warmup_iters=-1))[0],
        error_of(lambda: graphs.make_graphed_callable(function, (), num_warmup_iters="3"))[0],
        error_of(lambda: graphs.make_graphed_callable(function, 5))[0],
        error_of(lambda: graphs.make_graphed_callable(function, torch.ones(2)))[0],
        error_of(lambda: graphs.make_graphed_callable(function, (), sample_kwargs=[1]))[0],
        error_of(lambda: graphs.make_graphed_callable(function, ([torch.ones(2)],)))[0],
    ]
    return kind, runs[:count], gone, wrong, len(runs) - count, usable()


@check
def a_callable_keeps_its_inputs():
    sample = filled(MIB, 1)
    seen = weakref.ref(sample)
    graph = graphs.make_graphed_callable(lambda tensor: tensor.clone(), (sample,)).graph
    del sample
    gc.collect()
    kept = seen() is not None
    del graph
    gc.collect()
    return kept, seen() is None


finish()
