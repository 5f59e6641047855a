"""Requests of captures that are served from scattered pages, compared with native."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.python.torch_programs import Result, checks_of, simulated

PROGRAM = "features_moves.py"
RIGHT: dict[str, Any] = {
    "one_graph": [[True] * 3, True, 0],
    "graphs_of_a_pool": [[True] * 6],
    "a_capture_that_fails": [True, True, 0],
    "a_stream_that_joins_the_capture": [True, 8],
}
MIB: dict[str, dict[str, int]] = {
    "one_graph": {"native": 58, "ferro": 36},
    "graphs_of_a_pool": {"native": 78, "ferro": 62},
    "a_capture_that_fails": {},
    "a_stream_that_joins_the_capture": {"native": 58, "ferro": 34},
}
"""MiB that the graphs take. Their results and the largest scratch are 36, 58 and 34 MiB."""


@cache
def outcomes(allocator: str, mode: str) -> Result:
    return simulated(PROGRAM, allocator, memory="1GiB", mode=mode)


def test_every_check_is_expected() -> None:
    assert set(checks_of(PROGRAM)) == set(RIGHT)


@pytest.mark.parametrize(
    ("allocator", "mode"), [("native", "eager"), ("ferro", "eager"), ("ferro", "adversarial")]
)
@pytest.mark.parametrize("name", RIGHT)
def test_scattered_pages(name: str, allocator: str, mode: str) -> None:
    found = outcomes(allocator, mode)[name]
    assert "error" not in found, found["error"]
    taken = [value for value in found["value"] if type(value) is float]
    assert taken == [size for who, size in MIB[name].items() if who == allocator]
    assert [value for value in found["value"] if type(value) is not float] == RIGHT[name]
