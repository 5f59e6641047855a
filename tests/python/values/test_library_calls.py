"""Calls of cuFFT, cuSPARSE and cuSOLVER: their requests, compared with an H200's, and values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunSimulated

pytestmark = pytest.mark.no_extension

DATA = Path(__file__).parent


def last_line(run: RunSimulated, program: str | Path, *arguments: str, **activate: Any) -> Any:
    return json.loads(run(program, *arguments, **activate).stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("family", "cases", "compared", "other"),
    [("fft", 174, 78, [])],
)
def test_calls_request_what_they_request_on_a_gpu(
    run_simulated: RunSimulated, family: str, cases: int, compared: int, other: list[str]
) -> None:
    found = last_line(run_simulated, "sim_library_calls.py", family, gpu="h200")
    assert (found["failed"], found["values"]) == ([], [])
    assert found["requests"] == other
    assert found["cases"] == cases
    assert found["compared"] == compared


def test_plans_of_other_sizes_have_nearly_the_work_area_of_a_gpu(
    run_simulated: RunSimulated,
) -> None:
    """`library_plans.json` has a tenth of all measured plans, which are not in measured.inc."""
    found = last_line(run_simulated, "sim_library_plans.py", gpu="h200")
    assert found["plans"] == 1113
    assert found["equal"] >= 0.84 * found["plans"]
    assert found["near"] >= 0.98 * found["plans"]
