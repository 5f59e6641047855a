"""Choices from unknown numbers are functions of the numbers, and leave out masked ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import RunSimulated

pytestmark = pytest.mark.no_extension

MODES: dict[str, dict[str, Any]] = {
    "eager": {},
    "adversarial": {"mode": "adversarial", "seed": 3, "values": True},
    "clock": {"mode": "clock", "values": True},
}
ROWS, EXPERTS = 2048, 8


def found(run: RunSimulated, case: str, mode: str = "eager", **activate: Any) -> Any:
    done = run("sim_same_choices.py", case, **MODES[mode], **activate)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "case", ["operators_agree", "views_and_copies_agree", "other_numbers_differ"]
)
def test_a_choice_is_a_function_of_the_numbers(
    run_simulated: RunSimulated, mode: str, case: str
) -> None:
    results = found(run_simulated, case, mode)["found"]
    assert [name for name, holds in results.items() if not holds] == []


def test_a_queue_changes_no_choice(run_simulated: RunSimulated) -> None:
    at_once = found(run_simulated, "chosen_after")
    assert len(at_once["found"]) > 30
    for mode in MODES.keys() - {"eager"}:
        assert found(run_simulated, "chosen_after", mode) == at_once, mode


@pytest.mark.parametrize("mode", MODES)
def test_a_recomputation_makes_the_same_choices(run_simulated: RunSimulated, mode: str) -> None:
    assert found(run_simulated, "recomputed", mode) == {
        "found": {"done": True},
        "learned": ["drawn"],
    }


@pytest.mark.parametrize("mode", MODES)
def test_a_recomputation_from_the_host_makes_the_same_choices(
    run_simulated: RunSimulated, mode: str
) -> None:
    assert found(run_simulated, "recomputed_from_the_host", mode) == {
        "found": [{"done": True}] * 2,
        "learned": ["drawn", "float"],
    }


def test_equal_programs_of_two_cards_make_the_same_choices(run_simulated: RunSimulated) -> None:
    assert found(run_simulated, "other_cards_agree", count=2)["found"] == {"equal": True}


@pytest.mark.parametrize("mode", ["eager", "clock"])
def test_masked_numbers_are_not_chosen(run_simulated: RunSimulated, mode: str) -> None:
    results = found(run_simulated, "masked", mode)
    assert {name: count for name, count in results["found"].items() if count} == {}
    assert results["learned"] == ["drawn"]


def test_the_others_are_chosen_equally_often(run_simulated: RunSimulated) -> None:
    counts = found(run_simulated, "masked_evenly")["found"]
    assert counts[EXPERTS // 2 :] == [0] * (EXPERTS // 2)
    even = ROWS / (EXPERTS // 2)
    assert all(abs(count - even) < 0.25 * even for count in counts[: EXPERTS // 2])


def test_experts_are_those_of_the_chosen_groups(run_simulated: RunSimulated) -> None:
    assert found(run_simulated, "groups") == {"found": {"low": 0, "zero": 0}, "learned": ["drawn"]}


@pytest.mark.parametrize(
    ("case", "count", "learned"),
    [
        ("known_infinities", ROWS * EXPERTS // 2, []),
        ("drawn_infinities", ROWS * 2, ["drawn"]),
        ("unknown_infinities", None, ["size"]),
    ],
)
def test_infinities_that_the_program_wrote_count(
    run_simulated: RunSimulated, case: str, count: int | None, learned: list[str]
) -> None:
    results = found(run_simulated, case)
    assert results["learned"] == learned
    assert count is None or results["found"] == count


def test_masks_of_attention_leave_results_finite(run_simulated: RunSimulated) -> None:
    assert found(run_simulated, "finite_after_attention") == {"found": True, "learned": []}


@pytest.mark.parametrize("mode", ["eager", "clock"])
def test_reads_count_for_their_own_thread(run_simulated: RunSimulated, mode: str) -> None:
    assert found(run_simulated, "other_thread_reads", mode) == {"found": 1, "learned": ["drawn"]}


@pytest.mark.parametrize("mode", MODES)
def test_each_replay_makes_its_results_unknown(run_simulated: RunSimulated, mode: str) -> None:
    assert found(run_simulated, "replayed", mode)["found"] == [0, 1, 0, 1]
    # Each replay computes other numbers.
    assert found(run_simulated, "replayed_choices", mode)["found"] is False


def test_low_numbers_of_long_rows_come_last(run_simulated: RunSimulated) -> None:
    wrong, distinct = json.loads(run_simulated("sim_low_numbers.py").stdout.splitlines()[-1])
    assert wrong == []
    # All numbers of the row are low.
    assert distinct == 4
