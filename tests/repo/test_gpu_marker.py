"""On a machine with a GPU no test marked gpu gets lost."""

from __future__ import annotations

import pytest

from tests.conftest import GpuTests
from tools.test import gpu_tests_lost


def report(name: str, when: str, outcome: str) -> pytest.TestReport:
    marks = {} if name == "unmarked" else {"gpu": 1}
    return pytest.TestReport(name, ("", None, ""), marks, outcome, None, when)  # type: ignore[arg-type]


def test_runs_and_explained_skips_are_counted_separately() -> None:
    tests = GpuTests()
    tests.collected = {"runs", "fails", "lacks", "stops", "vanishes"}
    for name, when, outcome in (
        ("runs", "setup", "passed"),
        ("runs", "call", "passed"),
        ("fails", "call", "failed"),
        ("lacks", "setup", "skipped"),
        ("stops", "setup", "passed"),
        ("stops", "call", "skipped"),
        ("vanishes", "setup", "failed"),
        ("unmarked", "call", "passed"),
    ):
        tests.pytest_runtest_logreport(report(name, when, outcome))
    assert (tests.ran, tests.skipped) == ({"runs", "fails"}, {"lacks", "stops"})
    assert tests.counts() == {"collected": 5, "ran": 2, "skipped": 2}


@pytest.mark.parametrize(
    ("ran", "skipped", "lost"),
    [(5, 0, False), (3, 2, False), (3, 1, True), (0, 5, True), (0, 0, True)],
)
def test_a_run_on_a_gpu_fails_when_tests_get_lost(ran: int, skipped: int, lost: bool) -> None:
    assert gpu_tests_lost({"collected": 5, "ran": ran, "skipped": skipped}) == lost


def test_a_part_without_gpu_tests_loses_none() -> None:
    assert not gpu_tests_lost({"collected": 0, "ran": 0, "skipped": 0})
