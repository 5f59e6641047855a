"""One test for each test of the published design, under its name: an allocator and a graph layer.

Both layouts run each test. A test that does not apply to a layout is skipped with the reason.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import pytest

from tests import programs
from tests.python.torch_programs import Result, checks_of, result_of, simulated

ALLOCATOR = "features_allocator_design.py"
GRAPHS = "features_graph_design.py"
STATES = ["NONE", "ACTIVE", "INVALIDATED", "NONE"]
EXPECTED: dict[str, dict[str, Any]] = {
    ALLOCATOR: {
        "new_allocator_starts_at_zero": [0, 0],
        "empty_cache_is_harmless": [0, 0],
        "round_size_minimum": [512] * 4,
        "round_size_multiples": [1024, 1024, 1536],
        "alloc_size_small": [2, 2],
        "alloc_size_mid": [20, 20],
        "alloc_size_large": [10, 12],
        "block_pool_insert_find": [True, True, 2],
        "block_pool_respects_stream": [True, True, 2],
        "block_pool_finds_smallest_fit": [True, 2],
        "split_block_creates_remainder": [[0, 1024], True, 2],
        "coalesce_merges_adjacent_blocks": [True, True, 2],
        "should_split_small_pool": [[0, 1024], 2048, True, 2],
        "should_split_large_pool": [4096, 2048, True, 20, 2],
        "stream_uses_prevent_reuse": [True, True],
        "stream_uses_prevent_merge": [2048, True, [4096], 2],
        "cache_find_and_insert_roundtrip": [1, 1, 1, 512],
        "empty_cache_clears_pools": [1, 0, 0],
        "debug_impl": [True, True],
        "alloc_increases_allocated_bytes": [1024] * 3,
        "free_decreases_allocated_bytes": [512, 0],
        "peak_tracks_maximum": [1536, 1536, 1024, 0, 1536],
        "reset_peak_stats_lowers_peak": [True, 0],
        "alloc_copy_tracks_bytes": [32, 512, 0, 0],
        "zero_element_alloc": [0, 0, 0],
    },
    GRAPHS: {
        "capture_pool_buffer_count_starts_at_zero": 0,
        "capture_pool_record_buffer_increments_count": [[0, 1], [1, 2]],
        "capture_pool_clear_buffers_resets_count_but_keeps_pool": [0, 1, 2, 0, 0, 1, True],
        "capture_pool_drop_releases_registered_buffers": [1, 0, 0],
        "capture_pool_records_heterogeneous_types": 4,
        "capture_pool_seal_unseal": [False, True, False],
        "capture_mode_default_is_thread_local": ["THREAD_LOCAL"] * 3,
        "capture_mode_to_cuda_round_trip": [
            [mode, True, "ACTIVE"] for mode in ("global", "thread_local", "relaxed")
        ],
        "capture_status_is_capturing_only_when_active": [
            [name, name == "ACTIVE"] for name in STATES
        ],
        "capture_status_is_invalidated_only_when_broken": [
            [name, name == "INVALIDATED"] for name in STATES
        ],
        "capture_status_from_cuda_maps_all_variants": [
            [["NONE", 0], ["ACTIVE", 1], ["INVALIDATED", 2]],
            3,
        ],
        "graph_pool_handle_allocates_unique_ids": [True, [True, True], True],
        "graph_pool_handle_shares_single_pool_across_lookups": [True, 1, None, 1],
        "graph_pool_handle_release_is_idempotent": [True, None],
        "graph_pool_handle_unknown_id_returns_none": None,
    },
}
ABSENT = {
    ("alloc_size_mid", "ferro"): "memory comes in pages, so there are no segments of 20 MiB",
    ("should_split_large_pool", "ferro"): "with pages every block is split",
    ("cache_find_and_insert_roundtrip", "segments"): "outcomes exist only for pages",
}


@cache
def outcomes(program: str, allocator: str) -> Result:
    settings: dict[str, Any] = {"memory": "1GiB", "mode": "adversarial", "turn": "0.001"}
    return simulated(program, allocator, **settings)


@pytest.mark.parametrize("program", EXPECTED)
def test_every_check_is_expected(program: str) -> None:
    assert set(checks_of(program)) == set(EXPECTED[program])


@pytest.mark.parametrize("allocator", ["ferro", "segments"])
@pytest.mark.parametrize(
    ("program", "name"), [(program, name) for program in EXPECTED for name in EXPECTED[program]]
)
def test_design(program: str, name: str, allocator: str) -> None:
    if (name, allocator) in ABSENT:
        pytest.skip(ABSENT[name, allocator])
    found = outcomes(program, allocator)[name]
    assert "error" not in found, found["error"]
    assert found["value"] == EXPECTED[program][name]


WITHOUT_A_DEVICE = """
import json
from ferro_alloc import FerroError, graphs

found = {}
states = [graphs.CaptureStatus.NONE, graphs.CaptureStatus.ACTIVE, graphs.CaptureStatus.INVALIDATED]
found["capture_mode_and_status_exist_without_cuda_feature"] = [
    [state.is_capturing for state in states],
    [state.is_invalidated for state in states],
    graphs.CaptureMode("thread_local") is graphs.CaptureMode.THREAD_LOCAL,
]

handles = [graphs.graph_pool_handle() for _ in range(2)]
pools = [graphs.capture_pool_for_handle(handle) for handle in handles]
for handle in handles * 2:
    graphs.release_graph_pool_handle(handle)
found["graph_pool_handle_without_cuda_returns_sentinel"] = [
    handles[0] != handles[1],
    [pool.buffer_count for pool in pools],
    [graphs.capture_pool_for_handle(handle) for handle in handles],
]

try:
    graphs.begin_capture()
    text = ""
except FerroError as error:
    text = str(error)
found["captured_graph_stub_num_replays_and_is_uploaded_are_zero"] = text
print(json.dumps(found))
"""
WITHOUT: dict[str, Any] = {
    "capture_mode_and_status_exist_without_cuda_feature": [
        [False, True, False],
        [False, False, True],
        True,
    ],
    # The design's handle is one number for all pools. Here handles name pools without a device too.
    "graph_pool_handle_without_cuda_returns_sentinel": [True, [0, 0], [None, None]],
    # The design has a graph that was never captured. Here no graph exists without a device.
    "captured_graph_stub_num_replays_and_is_uploaded_are_zero": (
        "a capture needs a CUDA device, and torch finds none"
    ),
}


@cache
def without_a_device() -> Result:
    words = [sys.executable, "-c", WITHOUT_A_DEVICE]
    return result_of(programs.run(words, {"CUDA_VISIBLE_DEVICES": ""}))


@pytest.mark.parametrize("name", WITHOUT)
def test_without_a_device(name: str) -> None:
    assert without_a_device()[name] == WITHOUT[name]
