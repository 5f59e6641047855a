"""Random numbers on the simulated GPU are those of the card that it has the name of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunSimulated

pytestmark = pytest.mark.no_extension

RECORDED = Path(__file__).with_name("card_random.json")


def calls(run_simulated: RunSimulated, **activate: Any) -> Any:
    return json.loads(run_simulated("sim_random_calls.py", values=True, **activate).stdout)


def test_the_numbers_are_those_of_a_card(run_simulated: RunSimulated) -> None:
    done = run_simulated("sim_card_random.py", str(RECORDED), gpu="h200", values=True)
    found = json.loads(done.stdout)
    assert found == {"cases": 364, "wrong": []}


@pytest.mark.parametrize("mode", ["eager", "adversarial"])
def test_all_ways_to_draw_give_the_same_numbers(run_simulated: RunSimulated, mode: str) -> None:
    found = calls(run_simulated, gpu="h200", mode=mode, seed=3)
    assert found["wrong"] == []
    # Counted among the numbers that an H200 has for these sizes.
    assert (found["mask"], found["rows"]) == (973_163, 270_187)


def test_only_large_tensors_depend_on_the_card(run_simulated: RunSimulated) -> None:
    large, small = (calls(run_simulated, gpu=gpu)["first"] for gpu in ("h200", "rtx-3060"))
    assert large[:2] == small[:2]
    assert large[2][0] == small[2][0]  # the first thread's number
    assert large[2][1:] != small[2][1:]
