"""Handles, seals and buffers of graph pools; first without any device, then with graphs."""

from __future__ import annotations

import gc
import weakref
from functools import cache
from typing import Any

import pytest

from ferro_alloc import FerroError, graphs
from tests.python.torch_programs import Result, checks_of, simulated


class Kept:
    pass


def pool_of(handle: graphs.PoolHandle) -> graphs.CapturePool:
    pool = graphs.capture_pool_for_handle(handle)
    assert pool is not None
    return pool


def test_handles_are_unique_also_among_those_of_torch() -> None:
    import torch

    handles = [graphs.graph_pool_handle(), torch.cuda.graph_pool_handle()] * 2
    handles += [graphs.graph_pool_handle() for _ in range(10)]
    assert len({tuple(handle) for handle in handles}) == 12
    assert all(handle.id == handle for handle in handles if isinstance(handle, graphs.PoolHandle))


def test_a_pool_is_known_until_its_handle_is_released() -> None:
    handle = graphs.graph_pool_handle("decode")
    pool = pool_of(handle)
    assert (pool.name, pool.handle, pool) == ("decode", tuple(handle), pool_of(handle))
    graphs.release_graph_pool_handle(handle)
    assert graphs.capture_pool_for_handle(handle) is None
    graphs.release_graph_pool_handle(handle)


def test_unknown_handles_are_none() -> None:
    assert graphs.capture_pool_for_handle((0, 1 << 40)) is None
    graphs.release_graph_pool_handle((0, 1 << 40))


@pytest.mark.parametrize("wrong", [None, 7, (1,), (1, -1), (1, 1 << 64), ("0", "1"), [0, 1]])
def test_an_invalid_handle_is_refused(wrong: Any) -> None:
    for call in (graphs.capture_pool_for_handle, graphs.release_graph_pool_handle):
        with pytest.raises(FerroError, match="is not the handle of a graph pool"):
            call(wrong)


def test_seals() -> None:
    pool = pool_of(graphs.graph_pool_handle())
    assert not pool.is_sealed
    pool.seal()
    assert pool.is_sealed
    assert "sealed" in repr(pool)
    pool.unseal()
    assert not pool.is_sealed


def test_buffers_are_kept_and_dropped_in_order() -> None:
    handle = graphs.graph_pool_handle()
    pool, gone = pool_of(handle), list[int]()
    for number in range(3):
        kept = Kept()
        weakref.finalize(kept, gone.append, number)
        assert pool.record_buffer(kept) == number
    del kept
    gc.collect()
    assert (pool.buffer_count, gone) == (3, [])
    pool.clear_buffers()
    assert (pool.buffer_count, gone) == (0, [0, 1, 2])
    assert pool.record_buffer(Kept()) == 0


def test_buffers_go_with_the_pool() -> None:
    handle, kept = graphs.graph_pool_handle(), Kept()
    seen = weakref.ref(kept)
    pool_of(handle).record_buffer(kept)
    del kept
    gc.collect()
    assert seen() is not None
    graphs.release_graph_pool_handle(handle)
    assert seen() is None


EXPECTED: dict[str, Any] = {
    "a_handle_is_torchs": [True, True, True],
    "graphed_callables_take_a_handle": [[2, 4], True, True],
    "nothing_is_captured_into_a_sealed_pool": ["RuntimeError", True, True],
    "nothing_is_allocated_in_a_pool_that_is_sealed_meanwhile": ["RuntimeError", True, True, True],
    "memory_of_a_sealed_pool_may_be_freed": [True, True],
    "buffers_live_as_long_as_the_graphs": [[5 << 20, 5 << 20, True], True],
    "a_failed_capture_holds_nothing": [True, True],
    "handles_serve_as_mem_pools": [True, ["mine", True], "mine"],
    "pools_of_the_allocator_before": ["RuntimeError", True, True, True, True],
}


@cache
def outcomes(allocator: str) -> Result:
    return simulated("features_capture_pools.py", allocator, memory="1GiB")


def test_every_check_is_expected() -> None:
    assert set(checks_of("features_capture_pools.py")) == set(EXPECTED)


@pytest.mark.parametrize("allocator", ["ferro", "segments"])
@pytest.mark.parametrize("name", EXPECTED)
def test_pools_with_graphs(name: str, allocator: str) -> None:
    found = outcomes(allocator)[name]
    assert "error" not in found, found["error"]
    assert found["value"] == EXPECTED[name]
