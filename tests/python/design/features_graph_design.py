"""The tests of the published design of a graph layer, by name."""

import gc
import inspect
import sys

from tests.python.feature_checks import KIB, MIB, check, finish, take

import torch

from ferro_alloc import graphs
from ferro_alloc.graphs import CaptureGuard, CaptureMode, CapturePool, CaptureStatus


def states():
    """The states of a stream before, in and after a capture that a forbidden call invalidates."""
    stream = torch.cuda.Stream()
    found = [graphs.capture_status(stream)]
    capture = graphs.begin_capture(stream)
    take(KIB).zero_()
    found.append(capture.status())
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        found.append(capture.status())
    capture.discard()
    return [*found, graphs.capture_status(stream)]


# ---- buffers of a pool


@check
def capture_pool_buffer_count_starts_at_zero():
    return CapturePool().buffer_count


@check
def capture_pool_record_buffer_increments_count():
    pool, found = CapturePool(), []
    for buffer in (take(MIB), take(MIB).view(torch.float64)):
        found.append((pool.record_buffer(buffer), pool.buffer_count))
    return found


@check
def capture_pool_clear_buffers_resets_count_but_keeps_pool():
    pool = CapturePool()
    found = [pool.record_buffer(take(KIB)) for _ in range(2)]
    found.append(pool.buffer_count)
    pool.clear_buffers()
    found.append(pool.buffer_count)
    found.append(pool.record_buffer(take(KIB)))
    with CaptureGuard(pool) as guard:
        take(KIB).zero_()
    return [*found, pool.buffer_count, guard.graph.pool is pool]


@check
def capture_pool_drop_releases_registered_buffers():
    before, buffer, pool = torch.cuda.memory_allocated(), take(MIB), CapturePool()
    count = sys.getrefcount(buffer)
    pool.record_buffer(buffer)
    found = [sys.getrefcount(buffer) - count]
    del pool
    gc.collect()
    found.append(sys.getrefcount(buffer) - count)
    del buffer
    return [*found, torch.cuda.memory_allocated() - before]


@check
def capture_pool_records_heterogeneous_types():
    pool = CapturePool()
    for dtype in (torch.float32, torch.float64, torch.uint8):
        pool.record_buffer(torch.zeros(4, dtype=dtype, device="cuda"))
    pool.record_buffer(42)
    return pool.buffer_count


@check
def capture_pool_seal_unseal():
    pool = CapturePool()
    found = [pool.is_sealed]
    for act in (pool.seal, pool.unseal):
        act()
        found.append(pool.is_sealed)
    return found


# ---- modes and states


@check
def capture_mode_default_is_thread_local():
    takers = (graphs.begin_capture, CaptureGuard, graphs.make_graphed_callable)
    defaults = [inspect.signature(of).parameters["capture_error_mode"].default for of in takers]
    return [default.name for default in defaults]


@check
def capture_mode_to_cuda_round_trip():
    found = []
    for mode in CaptureMode:
        with CaptureGuard(capture_error_mode=mode.value) as guard:
            take(KIB).zero_()
            found.append((mode.value, CaptureMode(mode.value) is mode, guard.status().name))
    return found


@check
def capture_status_is_capturing_only_when_active():
    return [[state.name, state.is_capturing] for state in states()]


@check
def capture_status_is_invalidated_only_when_broken():
    return [[state.name, state.is_invalidated] for state in states()]


@check
def capture_status_from_cuda_maps_all_variants():
    # The numbers are those of CUstreamCaptureStatus.
    return [[state.name, state.value] for state in CaptureStatus], len(set(states()))


# ---- handles


@check
def graph_pool_handle_allocates_unique_ids():
    handles = [graphs.graph_pool_handle() for _ in range(2)]
    pools = [graphs.capture_pool_for_handle(handle) for handle in handles]
    for handle in handles:
        graphs.release_graph_pool_handle(handle)
    return handles[0] != handles[1], [pool is not None for pool in pools], pools[0] is not pools[1]


@check
def graph_pool_handle_shares_single_pool_across_lookups():
    handle = graphs.graph_pool_handle()
    first, second = (graphs.capture_pool_for_handle(handle) for _ in range(2))
    first.record_buffer(take(KIB))
    found = [first is second, second.buffer_count]
    graphs.release_graph_pool_handle(handle)
    return [*found, graphs.capture_pool_for_handle(handle), first.buffer_count]


@check
def graph_pool_handle_release_is_idempotent():
    handle = graphs.graph_pool_handle()
    found = [graphs.capture_pool_for_handle(handle) is not None]
    for _ in range(2):
        graphs.release_graph_pool_handle(handle)
    return [*found, graphs.capture_pool_for_handle(handle)]


@check
def graph_pool_handle_unknown_id_returns_none():
    return graphs.capture_pool_for_handle(graphs.PoolHandle((1 << 64) - 1))


finish()
