"""Planted leaks are found at their lines, and nothing else is."""

from __future__ import annotations

import json

import pytest

from ferro_alloc.snapshots import leaks
from ferro_alloc.snapshots._leaks import _grows
from tests.conftest import RunSimulated, find_program

MIB = 1 << 20


def line_of(function: str) -> str:
    """Of the statement of a function of the program."""
    lines = find_program("leaking.py").read_text().splitlines()
    at = lines.index(f"def {function}():") + 2
    return f"leaking.py:{at} {function}"


@pytest.mark.parametrize("allocator", ["native", "ferro_alloc"])
def test_planted_leak_is_found_and_a_declared_cache_is_not(
    allocator: str, run_simulated: RunSimulated
) -> None:
    done = run_simulated("leaking.py", allocator, gpu="h100", backing=False)
    declared, unknown = json.loads(done.stdout.splitlines()[-1])
    leak = [line_of("forget_a_tensor"), 12 * 3 * MIB, 12]
    cache = [line_of("fill_the_cache"), 12 * 5 * MIB, 12]
    # Blocks are what the allocator gave, which may be more than was asked for.
    assert [(line, count) for line, _, count in declared] == [(leak[0], leak[2])]
    assert [(line, count) for line, _, count in unknown] == [(cache[0], 12), (leak[0], 12)]
    for found, planted in zip((*unknown, *declared), (cache, leak, leak), strict=True):
        assert found[1] == pytest.approx(planted[1], rel=0.35)


@pytest.mark.parametrize(
    ("sizes", "grows"),
    [
        ([1, 2, 3, 4], True),
        ([5, 9, 6, 10, 7, 11, 8], True),
        ([1, 5, 1, 5, 1, 5], False),
        ([0, 8, 8, 8, 8], False),
        ([0, 4, 8, 8, 8, 8], False),
        ([4, 3, 2, 1], False),
        ([3, 3, 3], False),
    ],
)
def test_what_grows(sizes: list[int], grows: bool) -> None:
    assert _grows(sizes) is grows


def test_declared_is_a_sequence() -> None:
    with pytest.raises(TypeError, match="expected a sequence of texts"):
        leaks(declared="cache.py")
