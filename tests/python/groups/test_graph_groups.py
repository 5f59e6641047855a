"""Exclusive groups on the simulated GPU, also in every order that it allows."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import pytest

from ferro_alloc import FerroError, graphs
from tests.python.torch_programs import Result, checks_of, simulated

EXPECTED: dict[str, Any] = {
    "separate_pools_cost_their_results_and_the_largest_scratch": [*[True] * 5, 0],
    "one_pool_replays_in_any_order": [True, True, 1, 0],
    "graphs_that_exist_join_and_leave": [*[True] * 4, 0],
    # Three results of a page each, and one scratch of seven; also the three sources, and what
    # PyTorch keeps as long as a graph exists.
    "handles_with_results_stay_whole": [48 + 8, 32 + 8, 8, True, 32, True],
    "pools_beside_a_group_fill_their_pages": [[True, 12], True],
    "a_late_declaration_is_reported_once": [
        [["UserWarning", True]],
        [True, False],
        *[[]] * 3,
        2,
    ],
    "pools_that_are_not_members_are_refused": [["FerroError"], [True, True]],
    "a_pool_joins_on_all_devices_or_on_none": ["FerroError", 0, 0],
    "a_pool_that_cannot_leave_one_device_stays_a_member": ["FerroError", True, 2, 0, 1],
    "profilers_are_told_of_blocks_that_stay": [True, [-(2 << 20), -(2 << 20), 2 << 20]],
    "replay_is_restored_on_leave": [False, True],
    "replays_on_several_streams_are_ordered": 0,
    "a_group_lives_as_long_as_its_members": [0, True, "FerroError", 1, 0],
    "a_group_goes_with_its_last_member": [[True, True], True],
    "a_pool_without_graphs_stays_a_member": [0, 2],
    "groups_launch_beside_each_other": [True],
    "a_missing_order_shows_as_wrong_bytes": True,
    "a_graph_of_a_pool_that_is_a_member_is_ordered": [[0, 0], 2],
    "graphs_of_another_device_are_ordered_there": [0, 2],
    "results_that_die_and_captures_that_fail": 0,
    "a_pool_with_checkpoints_is_a_member": [True] * 6,
}


@cache
def groups(mode: str) -> Result:
    return simulated("features_exclusive.py", "ferro", memory="8GiB", mode=mode, count=2)


def test_every_check_of_groups_is_expected() -> None:
    assert set(checks_of("features_exclusive.py")) == set(EXPECTED)


@pytest.mark.parametrize("mode", ["eager", "adversarial"])
@pytest.mark.parametrize("name", EXPECTED)
def test_groups(name: str, mode: str) -> None:
    found = groups(mode)[name]
    assert "error" not in found, found["error"]
    if name == "a_missing_order_shows_as_wrong_bytes":
        # Work that runs at once is in order.
        assert found["value"] == (mode == "adversarial")
        return
    assert found["value"] == EXPECTED[name]


UNKNOWN, OUT_OF_MEMORY = "999", "2"
# A refusal of these functions always ends in an error.
PASSED_ON = (
    "cuEventRecordWithFlags",
    "cuStreamWaitEvent",
    "cuStreamBeginCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
)
BRIEF = ((UNKNOWN, "adversarial", "of_graphs"), (OUT_OF_MEMORY, "eager", "of_a_tree"))
GIVING_BACK = ("cuMemRelease", "cuMemAddressFree")


@pytest.mark.parametrize(
    ("result", "mode", "pools", "calls"),
    [
        *((*case, "few") for case in BRIEF),
        *(
            pytest.param(*case, "many", marks=pytest.mark.long)
            for case in product(
                (UNKNOWN, OUT_OF_MEMORY), ("eager", "adversarial"), ("of_graphs", "of_a_tree")
            )
        ),
    ],
)
def test_each_driver_call_refused_once(result: str, mode: str, pools: str, calls: str) -> None:
    words = ("groups_every_fault.py", "ferro", result, pools, calls)
    found = simulated(*words, memory="256MiB", mode=mode, seed=2, turn="0.01")
    for function in PASSED_ON:
        refused, seen = found[function]
        assert seen == refused > 0, function
    for function in GIVING_BACK:
        refused, seen = found[function]
        assert refused > seen == 0, function
    for function in ("cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemSetAccess"):
        refused, seen = found[function]
        if (function, result, pools) == ("cuMemCreate", OUT_OF_MEMORY, "of_a_tree"):
            assert refused > seen == 0  # its recordings exchange nothing, and requests try again
        else:
            assert 0 < seen < refused, function
    for function in ("cuCtxRecordEvent", "cuStreamGetCaptureInfo"):
        refused, seen = found[function]
        assert 0 < seen < refused, function


def test_a_group_needs_ferro_alloc() -> None:
    with pytest.raises(FerroError):
        graphs.exclusive()
