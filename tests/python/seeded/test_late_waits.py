"""The smallest program that waits late for a use of freed memory, on both kinds of GPU."""

from __future__ import annotations

import json

import pytest

from tests.conftest import RunProgram, RunSimulated
from tests.programs import Completed

LAYOUTS = ("native", "pages", "segments")


def assert_right(done: Completed) -> None:
    assert json.loads(done.stdout.splitlines()[-1]) == {"rounds": 40, "wrong": 0}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_late_waits_with_copies(run_simulated: RunSimulated, layout: str) -> None:
    for seed in range(3):
        words = ("late_wait_example.py", layout, "copies")
        turn = {"FERRO_SIM_TURN": "0.001"}
        assert_right(run_simulated(*words, env=turn, mode="adversarial", seed=seed))


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_late_waits_with_kernels(run_program: RunProgram, layout: str) -> None:
    assert_right(run_program("late_wait_example.py", layout, "kernels"))
