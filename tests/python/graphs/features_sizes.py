"""The memory of graphs and pools by name, in sizes, snapshots, statistics, and out-of-memory
errors."""

import gc

from tests.python.feature_checks import ALLOCATOR, MIB, check, error_of, finish, statistic, take

import torch

import ferro_alloc
from ferro_alloc import graphs
from ferro_alloc.graphs import CaptureGuard, GraphSizes, PoolSizes


LAYOUT = "segments" if ALLOCATOR == "segments" else "pages"


def captured(pool, *sizes, keep=0):
    """A graph whose capture allocates and frees, and keeps `keep` bytes."""
    with CaptureGuard(pool) as guard:
        tensors = [take(size) for size in sizes]
        for tensor in tensors:
            tensor.zero_()
        del tensors, tensor
        output = take(keep).zero_() if keep else None
    return guard.graph, output


def mib(sizes: GraphSizes | PoolSizes):
    return [
        round(sizes.private_bytes / MIB),
        round(sizes.live_bytes / MIB),
        round(sizes.scratch_bytes / MIB),
        round(sizes.shared_bytes / MIB),
    ]


@check
def a_graph_has_private_live_and_scratch_bytes():
    graph, output = captured(None, 10 * MIB, 20 * MIB, keep=40 * MIB)
    seen = [mib(graph.sizes())]
    del output
    seen.append(mib(graph.sizes()))
    return seen


@check
def what_graphs_of_a_pool_share_is_known():
    handle = graphs.graph_pool_handle("decode")
    first, _one = captured(handle, 30 * MIB, keep=10 * MIB)
    alone = mib(first.sizes())
    second, two = captured(handle, 20 * MIB, keep=4 * MIB)
    sizes = [first.sizes(), second.sizes()]
    sums = all(s.private_bytes + s.shared_bytes == s.live_bytes + s.scratch_bytes for s in sizes)
    shared = sizes[0].shared_bytes == sizes[1].shared_bytes > 0
    pool = graphs.capture_pool_for_handle(handle)
    both = pool.sizes()
    agree = both.shared_bytes == sizes[0].shared_bytes
    agree = agree and both.private_bytes == both.live_bytes + both.scratch_bytes
    live = round(both.live_bytes / MIB)
    del second, two
    gc.collect()
    return alone, sums, shared, agree, live, mib(first.sizes()) == alone


@check
def a_plain_graph_has_sizes_too():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        take(10 * MIB).zero_()
        output = take(30 * MIB).zero_()
    sizes = mib(graphs.CapturedGraph(graph).sizes())
    return sizes, output.numel() == 30 * MIB


@check
def a_capture_without_memory_has_none():
    target = take(MIB)
    with CaptureGuard(graphs.CapturePool()) as guard:
        target.zero_()
    return mib(guard.graph.sizes()), mib(guard.graph.pool.sizes())


@check
def pools_and_the_statistics_agree():
    default = take(7 * MIB)
    handles = [graphs.graph_pool_handle(name) for name in ("prefill", "decode")]
    kept = [captured(handle, 16 * MIB, keep=6 * MIB) for handle in handles]
    pools = ferro_alloc.device().private_pools
    names = sorted(pool.name for pool in pools)
    held, live = {}, {}
    for segment in torch.cuda.memory_snapshot():
        key = tuple(segment["segment_pool_id"])
        held[key] = held.get(key, 0) + segment["total_size"]
        live[key] = live.get(key, 0) + segment["allocated_size"]
    in_default = held.pop((0, 0)), live.pop((0, 0))
    same = held == {pool.handle: pool.sizes.private_bytes for pool in pools}
    same = same and live == {pool.handle: pool.sizes.live_bytes for pool in pools}
    reserved = in_default[0] + sum(pool.sizes.private_bytes for pool in pools)
    allocated = in_default[1] + sum(pool.sizes.live_bytes for pool in pools)
    idle = statistic("reserved_bytes") - reserved  # held for any pool
    agree = idle >= 0 and allocated == statistic("allocated_bytes") > default.nbytes
    result = names, same, agree, idle
    del kept
    gc.collect()
    for handle in handles:
        graphs.release_graph_pool_handle(handle)
    return result


@check
def names_stand_in_snapshots():
    handle = graphs.graph_pool_handle("decode")
    graph, _ = captured(handle, 4 * MIB)
    found = torch.cuda.memory._snapshot()["external_annotations"]
    names = [a for a in found if a.get("graph_pool") == "decode"]
    right = names[0]["segment_pool_id"] == str(tuple(handle))
    graphs.release_graph_pool_handle(handle)
    del graph
    gc.collect()
    return len(names), right


@check
def names_stand_in_out_of_memory_errors():
    handle = graphs.graph_pool_handle("decode")
    _graph, output = captured(handle, 40 * MIB, keep=24 * MIB)
    unnamed, _ = captured(None, 8 * MIB)
    kind, text = error_of(lambda: take(1000 * MIB))
    graphs.release_graph_pool_handle(handle)
    sentence = text.partition("Private pools hold:")[2]
    order = sentence.find("'decode'") < sentence.find(str(tuple(unnamed.cuda_graph.pool()))) != -1
    return kind, "'decode'" in sentence, "(24.00 MiB live)" in sentence, order, output.numel() > 0


@check
def sizes_need_ferro_alloc():
    handle = graphs.graph_pool_handle()
    graph, _ = captured(handle, 4 * MIB)
    ferro_alloc.uninstall()
    try:
        return error_of(graphs.capture_pool_for_handle(handle).sizes)[0], mib(graph.sizes())[1]
    finally:
        ferro_alloc.install(ferro_alloc.Config(layout=LAYOUT))


finish()
