"""Handles, seals and buffers of graph pools, with graphs captured in the ordinary way."""

import gc

from tests.python.feature_checks import ALLOCATOR, MIB, check, error_of, filled, finish, take, words

import torch

import ferro_alloc
from ferro_alloc import graphs


LAYOUT = "segments" if ALLOCATOR == "segments" else "pages"


def captured(pool, size=MIB, tag=1):
    """A graph that copies `source` to `result`."""
    source, graph = filled(size, tag), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = source.clone()
    return graph, source, result


def replays(graph, source, result, tag):
    source.copy_(words(tag, source.numel() * 4))
    graph.replay()
    return bool((result.cpu() == words(tag, source.numel() * 4)).all())


def pools_in_use():
    return {tuple(segment["segment_pool_id"]) for segment in torch.cuda.memory_snapshot()}


@check
def a_handle_is_torchs():
    handle = graphs.graph_pool_handle("decode")
    graph, source, result = captured(handle)
    in_use = handle in pools_in_use() and tuple(graph.pool()) == handle
    good = replays(graph, source, result, 3)
    del graph, result
    graphs.release_graph_pool_handle(handle)
    return in_use, good, graphs.capture_pool_for_handle(handle) is None


@check
def graphed_callables_take_a_handle():
    handle = graphs.graph_pool_handle()
    module = torch.nn.Linear(4, 4, device="cuda")
    sample = torch.ones(2, 4, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(module, (sample,), pool=handle)
    shape = list(graphed(sample).shape)
    graphs.release_graph_pool_handle(handle)
    released = graphs.capture_pool_for_handle(handle) is None
    return shape, handle in pools_in_use(), released


@check
def nothing_is_captured_into_a_sealed_pool():
    handle = graphs.graph_pool_handle("decode")
    pool = graphs.capture_pool_for_handle(handle)
    graph, source, result = captured(handle)
    pool.seal()
    kind, text = error_of(lambda: captured(handle))
    torch.cuda.set_stream(torch.cuda.default_stream())  # torch.cuda.graph leaves its own behind
    named = "'decode'" in text and str(handle) in text and "sealed" in text
    good = replays(graph, source, result, 4)
    other = captured(None)
    pool.unseal()
    again = captured(handle)
    good = good and replays(*again, 5) and replays(*other, 6)
    graphs.release_graph_pool_handle(handle)
    return kind, named, good


@check
def nothing_is_allocated_in_a_pool_that_is_sealed_meanwhile():
    handle = graphs.graph_pool_handle("prefill")
    pool = graphs.capture_pool_for_handle(handle)
    source, target, seen = filled(MIB, 2), filled(MIB, 3), []
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=handle):
        first = source.clone()
        pool.seal()
        seen.append(error_of(lambda: take(MIB)))
        target.copy_(first)
    pool.unseal()
    ((kind, text),) = seen
    outside = take(MIB)
    graphs.release_graph_pool_handle(handle)
    good = replays(graph, source, target, 8)
    return kind, "'prefill'" in text, good, outside.numel() == MIB


@check
def memory_of_a_sealed_pool_may_be_freed():
    handle = graphs.graph_pool_handle()
    graph, _, result = captured(handle, 3 * MIB)
    graphs.capture_pool_for_handle(handle).seal()
    before = torch.cuda.memory_allocated()
    del result
    freed = before - torch.cuda.memory_allocated()
    del graph
    graphs.release_graph_pool_handle(handle)
    torch.cuda.empty_cache()
    return freed == 3 * MIB, handle not in pools_in_use()


@check
def buffers_live_as_long_as_the_graphs():
    handle = graphs.graph_pool_handle()
    pool = graphs.capture_pool_for_handle(handle)
    graph, _, _ = captured(handle)
    second, _, _ = captured(handle)
    before = torch.cuda.memory_allocated()
    pool.record_buffer(take(5 * MIB))
    del pool
    gone = []
    graphs.release_graph_pool_handle(handle)
    graphs.release_graph_pool_handle(handle)
    gone.append(torch.cuda.memory_allocated() - before)
    del graph
    gone.append(torch.cuda.memory_allocated() - before)
    del second
    gc.collect()
    gone.append(torch.cuda.memory_allocated() <= before)
    return gone, graphs.capture_pool_for_handle(handle) is None


@check
def a_failed_capture_holds_nothing():
    handle = graphs.graph_pool_handle()
    pool = graphs.capture_pool_for_handle(handle)
    buffer = take(MIB)
    pool.record_buffer(buffer)
    del pool

    def fail():
        with torch.cuda.graph(torch.cuda.CUDAGraph(), pool=handle):
            take(MIB)
            torch.cuda.synchronize()

    kind, _ = error_of(fail)
    torch.cuda.set_stream(torch.cuda.default_stream())
    gc.collect()
    graphs.release_graph_pool_handle(handle)
    captured(None)  # notices what the failure left behind
    return kind != "", graphs.capture_pool_for_handle(handle) is None


@check
def handles_serve_as_mem_pools():
    handle = graphs.graph_pool_handle("decode")
    with torch.cuda.use_mem_pool(handle):
        tensor = take(3 * MIB)
    pools = {tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()}
    mem_pool = torch.cuda.MemPool()
    own = graphs.graph_pool_handle("mine", mem_pool=mem_pool)
    named = graphs.capture_pool_for_handle(own).name, own == tuple(mem_pool.id)
    with graphs.CaptureGuard(mem_pool) as guard:
        take(MIB).zero_()
    inside = guard.graph.pool.name
    del tensor, guard
    graphs.release_graph_pool_handle(handle)
    graphs.release_graph_pool_handle(own)
    return handle in pools, named, inside


@check
def pools_of_the_allocator_before():
    ferro_alloc.uninstall()
    handle = graphs.graph_pool_handle("old")
    graph, source, result = captured(handle)
    ferro_alloc.install(ferro_alloc.Config(layout=LAYOUT))
    pool = graphs.capture_pool_for_handle(handle)
    pool.seal()
    kind, text = error_of(lambda: captured(handle))
    torch.cuda.set_stream(torch.cuda.default_stream())
    good = replays(graph, source, result, 7)
    graphs.release_graph_pool_handle(handle)
    released = graphs.capture_pool_for_handle(handle) is None
    kept = graphs.CapturedGraph(graph).pool.name == "old"
    del graph, source, result
    gc.collect()
    return kind, "'old'" in text, good, released, kept


finish()
