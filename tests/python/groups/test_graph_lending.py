"""Scratch of idle graphs serves eager work, on the simulated GPU in every order that it allows."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from ferro_alloc import FerroError, graphs
from tests.python.torch_programs import Result, checks_of, simulated

WITHOUT = "without_lending_eager_work_finds_no_memory"
OOM, REFUSED = "OutOfMemoryError", "LentScratchError"
EXPECTED: dict[str, Any] = {
    WITHOUT: [OOM, True, True],
    "eager_work_gets_the_scratch_of_idle_graphs": [
        *[True, 2, True, 0],
        *[True, True, True, True, [0, 0]] * 3,
        0,
    ],
    "a_launch_that_is_refused_leaves_all_as_it_was": [*[True] * 6, 0, *[True] * 4] * 2,
    "free_memory_of_others_goes_before_a_launch_is_refused": [True, True, 0],
    "a_launch_asks_its_own_device": [*[True] * 4, REFUSED, True, True, 0],
    "several_groups_lend_as_many_as_it_takes": [
        *[[True, False, False, True], True],
        *[[True, False, True, False], True],
        *[[True, True, True, True], True],
        *[REFUSED, False, True, True],
    ],
    "what_is_in_different_groups_is_refused": [*["FerroError"] * 4, True, False],
    "captures_joins_and_leaves_while_lent": [
        *[OOM, "FerroError", "FerroError", True, True],
        *[0, True, 0, True, OOM],
    ],
    "what_one_graph_leaves_for_another_is_not_lent": [True] * 7,
    "graphs_go_while_lent": [True, 0, True, 0],
    "it_ends_at_once_or_before_the_next_launch": [False, True, REFUSED, True, 0, OOM, 0, True],
    "a_group_that_the_program_lets_go_of_lends_on": [True, True],
    "the_debug_mode_finds_what_is_wrong_while_lent": [*[True] * 9, "FREED_INPUT", True, True],
    "a_plan_is_exact_while_lent": [True] * 8,
    "another_allocator_may_serve_meanwhile": [True, True, 0, True, 0, True],
    "replays_on_several_streams_meet_their_own_pages": [0, True],
    "launches_and_eager_work_in_two_threads": [[], 60, True, True, True],
}


@cache
def lending(mode: str, allocator: str = "ferro", conf: str = "") -> Result:
    return simulated("features_lend.py", allocator, conf=conf, memory="128MiB", mode=mode, count=2)


def test_every_check_of_lending_is_expected() -> None:
    assert set(checks_of("features_lend.py")) == set(EXPECTED)


@pytest.mark.parametrize("mode", ["eager", "adversarial"])
@pytest.mark.parametrize("name", EXPECTED)
def test_lending(name: str, mode: str) -> None:
    found = lending(mode)[name]
    assert "error" not in found, found["error"]
    assert found["value"] == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_lending_under_the_debug_mode(name: str) -> None:
    found = lending("adversarial", conf="graph_debug:true")[name]
    assert "error" not in found, found["error"]
    assert found["value"] == EXPECTED[name]


def test_native_finds_no_memory_in_the_same_place() -> None:
    found = lending("eager", "native")[WITHOUT]
    assert "error" not in found, found["error"]
    assert found["value"] == [OOM, True, False]


def test_a_launch_past_python_is_an_illegal_access() -> None:
    found = simulated("features_lend.py", "ferro", "around", memory="128MiB", mode="eager")
    assert found == {"refused": REFUSED, "is_illegal": 1}


def test_lending_needs_ferro_alloc() -> None:
    with pytest.raises(FerroError):
        graphs.lend()


UNKNOWN, OUT_OF_MEMORY = "999", "2"
ALWAYS_SEEN = ("cuMemMap", "cuMemSetAccess", "cuCtxSynchronize", "cuGraphLaunch")


@pytest.mark.parametrize("mode", ["eager", "adversarial"])
@pytest.mark.parametrize("result", [UNKNOWN, OUT_OF_MEMORY])
def test_each_driver_call_refused_once(result: str, mode: str) -> None:
    found = simulated(
        "lend_every_fault.py", "ferro", result, memory="128MiB", mode=mode, seed=2, turn="0.01"
    )
    for function in ALWAYS_SEEN:
        refused, seen = found[function]
        assert seen == refused > 1, function
    refused, seen = found["cuMemRelease"]
    assert refused > seen == 0
    refused, seen = found["cuMemUnmap"]
    assert 0 < seen < refused
