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


def found(run: RunSimulated, case: str, mode: str = "eager", **activate: Any) -> Any:
    done = run("sim_same_choices.py", case, **MODES[mode], **activate)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("mode", ["eager", "clock"])
def test_reads_count_for_their_own_thread(run_simulated: RunSimulated, mode: str) -> None:
    assert found(run_simulated, "other_thread_reads", mode) == {"found": 1, "learned": ["drawn"]}
