"""After a capture fails, in any of the ways to capture, the handle of its pool works again."""

import gc
import itertools
import threading
import time
from pathlib import Path

from tests.python.feature_checks import (
    MIB,
    check,
    error_of,
    filled,
    finish,
    take,
    words,
)

import torch

from ferro_alloc import graphs
from ferro_alloc.graphs import CaptureGuard

FLAG = torch.ones(1, device="cuda")
FORBIDDEN = {"item": FLAG.item, "synchronize": torch.cuda.synchronize}


def home():
    torch.cuda.set_stream(torch.cuda.default_stream())  # torch.cuda.graph leaves its own behind


def with_torch(body, pool, stream=None):
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            body()
    finally:
        home()
    return graph.replay


def with_ours(body, pool, stream=None):
    with CaptureGuard(pool, stream=stream) as guard:
        body()
    return guard.graph.launch


def with_two_calls(body, pool, stream=None):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream or torch.cuda.Stream()):
        graph.capture_begin(pool=pool)
        try:
            body()
        finally:
            graph.capture_end()
    return graph.replay


WAYS = {"torch": with_torch, "ours": with_ours, "two calls": with_two_calls}


def fail(way, pool, forbidden="item", stream=None, body=None):
    def forbidden_body():
        take(3 * MIB)
        (body or FORBIDDEN[forbidden])()

    return error_of(lambda: way(forbidden_body, pool, stream))[0]


def works(way, pool, stream=None):
    """Captures in this way, and replays twice."""
    source, kept = filled(MIB, 5), []
    torch.cuda.synchronize()
    replay = way(lambda: kept.append(source.clone()), pool, stream)
    good = True
    for tag in (6, 7):
        source.copy_(words(tag, MIB))
        replay()
        torch.cuda.synchronize()
        good = good and torch.equal(kept[0].cpu(), words(tag, MIB))
    return good


@check
def a_handle_works_after_every_failure():
    wrong, side = [], torch.cuda.Stream()
    for forbidden, failing, later in itertools.product(FORBIDDEN, WAYS, WAYS):
        for count, stream in ((1, None), (3, side)):
            handle = graphs.graph_pool_handle()
            kinds = {fail(WAYS[failing], handle, forbidden, stream) for _ in range(count)}
            good = [works(WAYS[later], handle, stream), works(with_torch, handle)]
            if kinds != {"AcceleratorError"} or not all(good):
                wrong.append((forbidden, failing, later, count, sorted(kinds), good))
            graphs.release_graph_pool_handle(handle)
    return wrong


@check
def a_handle_of_torch_works_too():
    wrong = []
    for failing, later in itertools.product(WAYS, WAYS):
        handle = torch.cuda.graph_pool_handle()
        kinds = [fail(WAYS[failing], handle) for _ in range(2)]
        if not works(WAYS[later], handle):
            wrong.append((failing, later, kinds))
    return wrong


@check
def a_handle_outlives_its_graphs():
    handle, seen = graphs.graph_pool_handle(), []
    for way in (*WAYS.values(), *WAYS.values()):
        seen.append(works(way, handle))
        gc.collect()
    return seen


@check
def graphs_of_the_pool_replay_on():
    handle = graphs.graph_pool_handle()
    source, kept = filled(MIB, 5), []
    replay = with_ours(lambda: kept.append(source.clone()), handle)
    kinds = [fail(way, handle) for way in WAYS.values()]
    good = works(with_torch, handle)
    source.copy_(words(9, MIB))
    replay()
    torch.cuda.synchronize()
    return kinds, good, torch.equal(kept[0].cpu(), words(9, MIB))


@check
def nested_captures_that_fail():
    outer, inner = graphs.graph_pool_handle(), graphs.graph_pool_handle()
    streams = torch.cuda.Stream(), torch.cuda.Stream()

    def both():
        with CaptureGuard(outer, stream=streams[0]):
            take(MIB)
            with CaptureGuard(inner, stream=streams[1]):
                take(MIB)
                FLAG.item()

    kinds = [error_of(both)[0] for _ in range(2)]
    current = torch.cuda.current_stream() == torch.cuda.default_stream()
    return kinds, current, [works(way, pool) for way in WAYS.values() for pool in (inner, outer)]


@check
def one_pool_in_two_captures_at_once_is_refused():
    handle = graphs.graph_pool_handle()
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    source, seen = filled(MIB, 5), []
    torch.cuda.synchronize()
    with CaptureGuard(handle, stream=streams[0]) as guard:
        first = source.clone()
        seen.append(fail(with_ours, handle, stream=streams[1]))
        second = first.clone()
    guard.graph.launch()
    torch.cuda.synchronize()
    seen.append(torch.equal(second.cpu(), words(5, MIB)))
    return seen, works(with_torch, handle)


def await_end_of(thread):
    """Python joins a thread before the system ends it."""
    while Path(f"/proc/self/task/{thread.native_id}").exists():
        time.sleep(0.01)


@check
def a_capture_whose_thread_has_ended():
    seen = []
    for way in WAYS.values():
        handle, kinds = graphs.graph_pool_handle(), []
        stream = torch.cuda.Stream()
        thread = threading.Thread(
            target=lambda way=way, handle=handle, kinds=kinds, stream=stream: kinds.append(
                fail(way, handle, stream=stream)
            )
        )
        thread.start()
        thread.join()
        await_end_of(thread)
        seen.append([*kinds, works(with_torch, handle), works(with_ours, handle)])
    return seen


@check
def another_thread_uses_the_pool_while_the_first_allocates_nothing():
    def in_mem_pool(handle):
        with torch.cuda.use_mem_pool(handle):
            return take(MIB).numel() == MIB

    def in_capture(handle):
        return works(with_torch, handle, torch.cuda.Stream())

    def without_memory(body, pool, stream):
        return way(FLAG.item, pool, stream)

    seen = []
    for way, use in itertools.product((with_torch, with_two_calls), (in_mem_pool, in_capture)):
        allocates = (way is with_torch) == (use is in_mem_pool)
        handle, good = graphs.graph_pool_handle(), []
        kind = fail(way if allocates else without_memory, handle)
        thread = threading.Thread(target=lambda use=use, h=handle, g=good: g.append(use(h)))
        thread.start()
        thread.join()
        seen.append([kind, *good, works(with_ours, handle)])
    return seen


@check
def other_threads_run_while_one_waits_for_a_pool():
    """The failed capture has left its diversion, whose end the other thread awaits."""
    handle, good = graphs.graph_pool_handle(), []

    def use():
        with torch.cuda.use_mem_pool(handle):
            good.append(take(MIB).numel() == MIB)

    kind = fail(with_torch, handle)
    thread = threading.Thread(target=use)
    longest, last = 0, time.monotonic()
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    return kind, good, longest < 0.5


def held():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(), torch.cuda.memory_allocated()


@check
def memory_of_a_failed_capture_is_free_again():
    handle = graphs.graph_pool_handle()
    pool = graphs.capture_pool_for_handle(handle)
    for way in WAYS.values():
        fail(way, handle)  # allocates what PyTorch keeps for the graphs of a stream
    before, seen = held(), []
    for way in WAYS.values():
        for _ in range(3):
            fail(way, handle)
        seen.append(held() == before)
    return seen, pool.sizes().private_bytes


@check
def pinned_memory_of_a_failed_capture_is_free_again():
    kept = []

    def pin():
        kept.append(torch.empty(MIB, dtype=torch.uint8, pin_memory=True))
        FLAG.item()

    def pinned():
        kept.clear()
        gc.collect()
        torch._C._host_emptyCache()
        return torch.cuda.host_memory_stats()["allocated_bytes.current"]

    handle, before, seen = graphs.graph_pool_handle(), pinned(), []
    for way in WAYS.values():
        fail(way, handle, body=pin)
        seen.append(works(way, handle))
    graphs.release_graph_pool_handle(handle)
    gc.collect()
    torch.cuda.empty_cache()
    return seen, pinned() - before


finish()
