"""How long pools live, under ferro_alloc's layouts and before any install."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.python.torch_programs import Result, checks_of, simulated

EXPECTED: dict[str, Any] = {
    "a_pool_is_one_object": [15, True],
    "a_held_pool_keeps_its_buffers_without_its_handle": [[[2, 2]], True],
    "a_capture_by_the_number_of_a_held_pool_is_into_that_pool": [True, 2, True],
    "a_graphed_callable_keeps_the_pool": [True, 2, True],
    "a_plain_graph_keeps_the_pool": [True, 2, "decode", True],
    "a_plain_graph_alone_keeps_the_pool_and_the_last_one_drops_it": [True, True, True],
    "the_pool_of_a_destroyed_graph_keeps_its_buffers": [1, "decode", True],
    "a_capture_without_a_pool_gets_one_when_asked": [True, True, 1, True],
    "a_running_capture_keeps_the_pool": [2, True],
    "buffers_go_with_the_last_user": [[True, True, False, True]] * 3,
    "a_handle_that_is_used_after_its_release_is_a_new_pool": [True, ["", 0, False], True, True],
    "a_pool_of_ones_own_releases_its_memory": [True, True, True, True, [0, 0], True],
    "memory_goes_with_the_last_user": {},
    "memory_goes_in_another_thread": True,
    "memory_in_use_stays": [True, True, 0],
    "a_capture_runs_on_when_a_pool_goes": [[True] * 6, 0],
    "an_emptied_pool_is_used_again": 9,
    "a_pool_whose_graphs_are_gone_is_used_again_or_refused_by_name": [True] * 9,
    "a_sealed_pool_refuses_captures_however_it_is_reached": [True, False],
    "a_sealed_pool_is_not_attached_at_the_end": ["FerroError", True, "ACTIVE", True, True],
    "a_handle_of_torch_is_known_once_something_was_captured": [True] * 12,
    "a_mem_pool_is_known_as_long_as_it_lives": [True, True, "theirs", True],
    "releases_beside_captures_lose_nothing": [],
}


@cache
def outcomes(allocator: str, mode: str) -> Result:
    return simulated("features_pool_lifetimes.py", allocator, memory="1GiB", mode=mode)


def test_every_check_is_expected() -> None:
    assert set(checks_of("features_pool_lifetimes.py")) == set(EXPECTED)


@pytest.mark.parametrize(
    ("allocator", "mode"),
    [("ferro", "eager"), ("ferro", "adversarial"), ("segments", "eager"), ("native", "eager")],
)
@pytest.mark.parametrize("name", EXPECTED)
def test_pools_live_as_long_as_they_are_used(name: str, allocator: str, mode: str) -> None:
    found = outcomes(allocator, mode)[name]
    assert "error" not in found, found["error"]
    assert found["value"] == EXPECTED[name]
