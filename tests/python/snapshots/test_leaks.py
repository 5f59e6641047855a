"""Planted leaks are found at their lines, and nothing else is."""

from __future__ import annotations

import json

import pytest

from ferro_alloc.snapshots import leaks
from ferro_alloc.snapshots._leaks import _grows
from tests.conftest import RunSimulated
from tests.programs import find_program

MIB = 1 << 20


def line_of(function: str, below: int) -> str:
    """The line of the statement `below` lines after the head of a function of the program."""
    lines = find_program("leaking.py").read_text().splitlines()
    at = lines.index(f"def {function}():") + 1 + below
    return f"leaking.py:{at} {function}"


@pytest.mark.parametrize(
    "allocator", [pytest.param("native", marks=pytest.mark.long), "ferro_alloc"]
)
def test_planted_leak_is_found_and_a_declared_cache_is_not(
    allocator: str, run_simulated: RunSimulated
) -> None:
    done = run_simulated("leaking.py", allocator, gpu="h100", backing=False)
    declared, unknown, by_tag = json.loads(done.stdout.splitlines()[-1])
    tag = "kv store" if allocator == "ferro_alloc" else ""
    leak = [line_of("forget_a_tensor", 1), 12 * 3 * MIB, 12, ""]
    cache = [line_of("fill_the_cache", 2), 12 * 5 * MIB, 12, tag]
    # Blocks have the size that the allocator gave, which may exceed the request.
    for found, planted in (
        (declared, [leak]),
        (unknown, [cache, leak]),
        (by_tag, [leak] if tag else [cache, leak]),
    ):
        assert [[line, *rest] for line, _, *rest in found] == [
            [line, *rest] for line, _, *rest in planted
        ]
        for (_, size, *_), (_, wanted, *_) in zip(found, planted, strict=True):
            assert size == pytest.approx(wanted, rel=0.35)


REPEATED = """
import json, sys, torch, ferro_alloc
ferro_alloc.record_history()
torch.ones(4, device="cuda")
watch = ferro_alloc.leaks()
before = [sys.getrefcount(flag) for flag in (True, False)]
for _ in range(200):
    watch.mark()
after = [sys.getrefcount(flag) for flag in (True, False)]
print(json.dumps([now - then for then, now in zip(before, after)]))
"""


def test_marks_may_be_repeated_without_end(run_simulated: RunSimulated) -> None:
    """Snapshots of torch 2.11 release references that they do not own."""
    lost = json.loads(run_simulated(REPEATED, memory="256MiB").stdout.splitlines()[-1])
    assert min(lost) > -100


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
