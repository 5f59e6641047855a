"""Failures, their errors, and the unchanged state afterwards."""

import gc
import re
import threading
import time

from tests.python.feature_checks import (
    ALLOCATOR,
    FERRO,
    KIB,
    MIB,
    check,
    check_invariants,
    error_of,
    filled,
    finish,
    statistic,
    take,
    words,
)

import torch

from ferro_alloc import sim

TOTAL = torch.cuda.mem_get_info()[1]
NAMES = ("allocation", "active", "allocated_bytes", "requested_bytes", "active_bytes")
_SIZE = r"[\d.]+ (?:bytes|[KMG]iB)"
SENTENCE = re.compile(
    rf"CUDA out of memory\. Tried to allocate {_SIZE}\. GPU (?P<device>\d+) has a total capacity "
    rf"of {_SIZE} of which {_SIZE} is free\. (?P<allowed>{_SIZE} allowed; )?(.*? )?Of the "
    rf"allocated memory {_SIZE} is allocated by PyTorch, (with {_SIZE} allocated in private "
    rf"pools \(e\.g\., CUDA Graphs\), )?and {_SIZE} is reserved by PyTorch but unallocated\."
)


def counts():
    return {name: statistic(name) for name in NAMES}


def refused(call):
    """The error of a call that must change nothing; the next allocation must succeed."""
    before = counts()
    kind, text = error_of(call)
    assert counts() == before, (counts(), before)
    check_invariants()
    kept = filled(64 * KIB, 3)
    assert torch.equal(kept.cpu(), words(3, 64 * KIB))
    return kind, text


def raw(size, **where):
    return torch.cuda.caching_allocator_alloc(size, **where)


delete = torch.cuda.caching_allocator_delete


@check
def sizes_that_cannot_be():
    def of_a_raw_allocation(size):
        return refused(lambda: raw(size))[0]

    kinds = [refused(lambda s=s: take(s)) for s in (1 << 62, 1 << 60, -1)]
    texts = [(kind, text.splitlines()[0]) for kind, text in kinds]
    almost, text = refused(lambda: take((1 << 60) - 1))
    assert SENTENCE.match(text), text
    return texts, almost, [of_a_raw_allocation(s) for s in (1 << 62, 1 << 60, (1 << 60) - 1)]


@check
def nothing_is_asked_for():
    before = counts()
    kept = [torch.empty(0, device="cuda"), torch.empty((5, 0), device="cuda")]
    pointer = raw(0)
    delete(pointer)
    assert counts() == before
    return pointer, [tensor.data_ptr() for tensor in kept]


@check
def more_than_the_card():
    kind, text = refused(lambda: take(TOTAL + 1))
    found = SENTENCE.match(text)
    assert found, text
    return kind, found["device"], found["allowed"]


def refused_on_a_full_card():
    before = counts()
    kind, text = error_of(lambda: take(2 * MIB))
    assert SENTENCE.match(text), text
    assert counts() == before
    return kind


@check
def a_full_card():
    """Allocates to the last page; freed memory must be available again at once."""
    size, kept = 2 * MIB, []
    kind = ""
    while not kind:
        kind, _ = error_of(lambda: kept.append(take(size)))
    held = len(kept)
    tags = (0, len(kept) // 2, len(kept) - 1)
    for tag in tags:
        kept[tag].view(torch.int32).copy_(words(tag, size))
    for i in range(20):
        assert refused_on_a_full_card() == "OutOfMemoryError"
        del kept[1 + 5 * i]
        kept.insert(1 + 5 * i, take(size))
    assert all(torch.equal(kept[tag].view(torch.int32).cpu(), words(tag, size)) for tag in tags)
    live = statistic("allocation")
    kept.clear()
    return kind, held * size > 0.8 * TOTAL, live - statistic("allocation") == held


@check
def a_share_of_the_card():
    torch.cuda.set_per_process_memory_fraction(0.5)
    try:
        kept = take(TOTAL // 2 - 20 * MIB)
        kind, text = refused(lambda: take(40 * MIB))
        found = SENTENCE.match(text)
        assert found, text
        small = take(MIB)
        del kept
        again = take(TOTAL // 2 - 40 * MIB)
        assert small.numel() + again.numel() <= torch.cuda.memory_reserved() <= TOTAL // 2
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return kind, found["allowed"]


@check
def shares_that_cannot_be():
    fraction = torch.cuda.get_per_process_memory_fraction()
    kinds = [
        error_of(lambda value=value: torch.cuda.set_per_process_memory_fraction(value))[0]
        for value in (-0.1, 1.1, "half")
    ]
    assert torch.cuda.get_per_process_memory_fraction() == fraction
    return kinds


@check
def foreign_pointers():
    kept, pointer = filled(MIB, 9), raw(3 * MIB)
    delete(pointer)
    # Pointers that are foreign, freed twice, or of host memory.
    wrong = [0x7000, pointer, torch.empty(10).data_ptr()]
    found = [refused(lambda p=p: delete(p)) for p in wrong]
    if FERRO:
        # A pointer into a live block, which native does not find either.
        found.append(refused(lambda: delete(kept.data_ptr() + 512)))
    assert all("invalid device pointer" in text for _, text in found), found
    assert torch.equal(kept.cpu(), words(9, MIB))
    return [kind for kind, _ in found[:3]]


@check
def out_of_memory_texts_that_tools_parse():
    """The texts decide in accelerate's find_executable_batch_size and Lightning's batch size
    finder."""

    def accelerate_retries(error):
        told = ("CUDA out of memory.", "CUDNN_STATUS_NOT_SUPPORTED.", "can't allocate memory")
        is_one = isinstance(error, RuntimeError) and len(error.args) == 1
        return is_one and any(part in error.args[0] for part in told)

    def lightning_retries(error):
        return (
            isinstance(error, RuntimeError)
            and len(error.args) == 1
            and "CUDA" in error.args[0]
            and "out of memory" in error.args[0]
        )

    said = []
    for size in (2 * TOTAL, 1 << 60):
        try:
            take(size)
        except torch.cuda.OutOfMemoryError as error:
            said.append((accelerate_retries(error), lightning_retries(error), len(error.args)))
            assert "Tried to allocate" in str(error)
    return said


@check
def an_observer_that_raises():
    seen, raises = [], [True]

    def observer(device, requested, total, free):
        seen.append((device, requested, total == TOTAL, 0 < free <= TOTAL))
        if raises:
            raise KeyError("of the observer")

    torch._C._cuda_attach_out_of_memory_observer(observer)
    kinds = [refused(lambda: take(2 * TOTAL))[0] for _ in range(3)]
    # The observer cannot be removed.
    raises.clear()
    return [*kinds, refused(lambda: take(2 * TOTAL))[0]], list(seen)


@check
def threads_that_die_with_tensors():
    """The tensors are in a list of the program, in variables of the thread, and in its thread-local
    storage."""
    before, kept, local = counts(), [], threading.local()

    def work(tag):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            local.value = filled(64 * KIB, tag)
            own = filled(128 * KIB, tag)
            own.record_stream(torch.cuda.default_stream())
            kept.append(own.clone())
            if tag % 3 == 0:
                raise SystemExit

    threads = [threading.Thread(target=work, args=(tag,)) for tag in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    found = sorted(int(tensor.cpu()[0]) for tensor in kept)
    kept.clear()
    gc.collect()
    torch.cuda.empty_cache()
    assert counts() == before, (counts(), before)
    return found == list(range(30))


@check
def out_of_memory_in_a_capture():
    source, side = filled(MIB, 6), torch.cuda.Stream()
    start = counts()
    for _ in range(3):
        graph = torch.cuda.CUDAGraph()

        def capture(graph=graph):
            with torch.cuda.graph(graph, stream=side):
                between = source.clone()
                take(2 * TOTAL)
                between.clone()

        kind, text = error_of(capture)
        torch.cuda.set_stream(torch.cuda.default_stream())
        assert kind == "OutOfMemoryError", text
        del graph, capture
        gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    if FERRO:
        assert counts() == start, (counts(), start)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        result = source.clone()
    for tag in (11, 12):
        source.copy_(words(tag, MIB))
        graph.replay()
        assert torch.equal(result.cpu(), words(tag, MIB))
    return kind


@check
def a_capture_on_a_full_card():
    source, side = filled(4 * MIB, 6), torch.cuda.Stream()
    kept = []
    while not error_of(lambda: kept.append(take(8 * MIB)))[0]:
        pass

    def capture():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            result = [source.clone() for _ in range(10)]
        return graph, result

    # A graph to keep PyTorch's generator ready; see torch_every_fault.py.
    del kept[-4:]
    steady = torch.cuda.CUDAGraph()
    with torch.cuda.graph(steady, stream=side):
        first = source.clone()
    kind, _ = error_of(capture)
    torch.cuda.set_stream(torch.cuda.default_stream())
    gc.collect()
    kept.clear()
    graph, result = capture()
    graph.replay()
    steady.replay()
    assert all(torch.equal(tensor.cpu(), words(6, 4 * MIB)) for tensor in [first, *result])
    return kind


@check
def failures_on_many_threads():
    """The failures happen at the same time, and no thread loses its memory."""
    errors, before = [], counts()

    def work(tag):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(15):
                    kept = filled(256 * KIB, tag)
                    assert error_of(lambda: take(2 * TOTAL))[0] == "OutOfMemoryError"
                    assert torch.equal(kept.cpu(), words(tag, 256 * KIB))
        except BaseException as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=work, args=(1000 * tag,)) for tag in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert errors == []
    assert counts() == before


@check
def failures_cost_the_driver_nothing():
    """With an empty cache, an impossible request makes no driver call for memory."""
    torch.cuda.empty_cache()
    error_of(lambda: take(2 * TOTAL))
    sim.reset_counters()
    started = time.process_time()
    for _ in range(50):
        error_of(lambda: take(2 * TOTAL))
    if ALLOCATOR == "ferro":
        calls = sim.counters()
        assert "cuMemCreate" not in calls, calls
        assert "cuMemAddressReserve" not in calls, calls
    assert time.process_time() - started < 20


finish()
