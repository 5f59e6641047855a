"""The same programs under native and ferro_alloc, compared after every operation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.python.random_programs import seeded

# These columns depend on the program and not on the allocator.
SAME = (
    "operation",
    "allocation/current",
    "allocation/peak",
    "allocation/allocated",
    "allocation/freed",
    "requested_bytes/allocated",
    "answer",
    "num_ooms",
)

EXTRAS = ("history", "own_pools", "sharing", "uncached")
RARE = ("checkpoints", "clones", "metadata", "peers", "raw", "resets", "scalars", "snapshots")
LONG = pytest.mark.long
PROGRAMS = pytest.mark.parametrize("programs", [1, pytest.param(4, marks=LONG)])
LIMITS = "limits"
"""Only the current allocator counts failures, so this extra excludes switches."""


class Run(NamedTuple):
    columns: list[str]
    steps: list[list[Any]]

    def column(self, name: str) -> list[Any]:
        index = self.columns.index(name)
        return [step[index] for step in self.steps]

    def decided(self) -> dict[str, list[Any]]:
        """The columns of each device that must be the same under every allocator."""
        names = [name for name in self.columns if name.split(":")[-1] in SAME]
        return {name: self.column(name) for name in names}


def run(folder: Path, allocator: str, *words: str) -> Run:
    log = folder / f"{allocator}.json"
    result = seeded("--allocator", allocator, "--mode", "eager", *words, "--judge-log", str(log))
    assert result["errors"] == []
    assert result["wrong_reads"] == 0
    assert result["allocated_at_end"] == result["reserved_at_end"] == result["free_lost"] == 0
    return Run(**json.loads(log.read_text()))


def assert_same(native: Run, ferro: Run) -> None:
    ours, theirs = ferro.decided(), native.decided()
    assert ours.keys() == theirs.keys() >= set(SAME)
    for name in ours:
        assert ours[name] == theirs[name], name


@pytest.mark.parametrize(
    "extras",
    [EXTRAS, pytest.param((*EXTRAS, *RARE), marks=LONG)],
    ids=["extras", "rare_calls"],
)
@PROGRAMS
def test_switching_changes_no_count(tmp_path: Path, extras: tuple[str, ...], programs: int) -> None:
    """Blocks of the other allocator have the sizes that it chose; the numbers of blocks agree."""
    many = ("--seed", "61", "--programs", str(programs))
    words = ("--threads", "2", *many, "--extras", "switches", *extras)
    native, ferro = (run(tmp_path, allocator, *words) for allocator in ("native", "ferro"))
    assert len(native.steps) == len(ferro.steps) > 1_600 * programs
    assert "Switch" in ferro.column("operation")
    assert_same(native, ferro)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("--threads", "1", "--seed", "11"), marks=LONG),
        ("--threads", "3", "--seed", "21"),
        ("--threads", "2", "--seed", "31", "--without", "empty_cache"),
        pytest.param(("--threads", "2", "--seed", "41", "--extras", *EXTRAS), marks=LONG),
        pytest.param(("--threads", "2", "--seed", "51", "--extras", *RARE), marks=LONG),
        (
            "--threads",
            "2",
            "--seed",
            "71",
            "--extras",
            *EXTRAS,
            *RARE,
            LIMITS,
        ),
    ],
    ids=["one_thread", "three_threads", "full_cache", "extras", "rare_calls", "every_call"],
)
@PROGRAMS
def test_native_and_ferro_agree_after_every_operation(
    tmp_path: Path, words: tuple[str, ...], programs: int
) -> None:
    words = ("--programs", str(programs), *words)
    native, ferro = (run(tmp_path, allocator, *words) for allocator in ("native", "ferro"))
    assert len(native.steps) == len(ferro.steps) > 1_600 * programs
    assert_same(native, ferro)

    # Requests are rounded alike, and native sometimes hands out a little more.
    pairs = zip(
        ferro.column("allocated_bytes/current"),
        native.column("allocated_bytes/current"),
        strict=True,
    )
    assert all(ours <= theirs for ours, theirs in pairs)
    for kind in ("allocated_bytes", "reserved_bytes"):
        peaks = zip(ferro.column(f"{kind}/current"), ferro.column(f"{kind}/peak"), strict=True)
        assert all(current <= highest for current, highest in peaks)

    # Where no free waits for another stream, the bytes in use agree as well. Native looks at its
    # events only when it allocates or empties its cache.
    settled = [
        number
        for number, (operation, active, allocated) in enumerate(
            zip(
                native.column("operation"),
                native.column("active/current"),
                native.column("allocation/current"),
                strict=True,
            )
        )
        if operation == "EmptyCache" and active == allocated
    ]
    for name in ("active/current", "requested_bytes/current"):
        ours, theirs = ferro.column(name), native.column(name)
        assert [ours[i] for i in settled] == [theirs[i] for i in settled]
