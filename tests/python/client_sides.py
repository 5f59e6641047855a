"""Runs a client's program under each allocator, and compares its memory and times with native's."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from tests.python.torch_programs import simulated

# The environment that selects each allocator; the program itself installs ferro_alloc.
ALLOCATORS: Mapping[str, Mapping[str, str]] = {
    "native": {},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "pages": {},
    "segments": {"FERRO_ALLOC_CONF": "layout:segments"},
    # Also in processes that the program starts.
    "everywhere": {"FERRO_ALLOC": "strict"},
}


@dataclass(frozen=True)
class Side:
    """A program's run under one allocator; bytes and seconds."""

    value: Any
    peak_reserved: int
    peak_allocated: int
    seconds: float
    processor_seconds: float

    @property
    def unused(self) -> int:
        return self.peak_reserved - self.peak_allocated


def run_sides(
    program: str,
    *arguments: str,
    allocators: Sequence[str] = ("native", "expandable", "pages", "segments"),
    env: Mapping[str, str] | None = None,
    **activate: Any,
) -> dict[str, Side]:
    """Each allocator's side. There are FERRO_CLIENT_ROUNDS runs of each, which take turns: times
    are their medians, and all else is that of the last one."""
    rounds = int(os.environ.get("FERRO_CLIENT_ROUNDS", "1"))
    runs: dict[str, list[Side]] = {name: [] for name in allocators}
    for _ in range(rounds):
        for name in allocators:
            settings = {**ALLOCATORS[name], **(env or {})}
            found = simulated(program, name, *arguments, env=settings, **activate)
            runs[name].append(Side(**found))
    sides = {name: _typical(each) for name, each in runs.items()}
    name = Path(program).stem.removeprefix("client_")
    _write_figures(" ".join([name, *arguments]), sides)
    return sides


def _typical(runs: Sequence[Side]) -> Side:
    return replace(
        runs[-1],
        seconds=median(run.seconds for run in runs),
        processor_seconds=median(run.processor_seconds for run in runs),
    )


def assert_no_more_memory(sides: Mapping[str, Side]) -> None:
    """Peak reserved at most native's, and unused memory with pages at most that of the better one
    of native and expandable segments."""
    native = sides["native"]
    others = [sides[name] for name in ("native", "expandable") if name in sides]
    assert native.peak_allocated > 0
    for name in ("pages", "segments"):
        if name in sides:
            assert sides[name].peak_reserved <= native.peak_reserved, (name, sides)
    if "pages" in sides:
        assert sides["pages"].unused <= min(side.unused for side in others), sides


def _write_figures(program: str, sides: Mapping[str, Side]) -> None:
    """Ratios need native's side, so without it there are no figures."""
    path = os.environ.get("FERRO_CLIENT_FIGURES")
    native = sides.get("native")
    if not path or native is None:
        return
    with Path(path).open("a") as out:
        for name, side in sides.items():
            row = {
                "program": program,
                "allocator": name,
                "peak reserved": f"{side.peak_reserved / 2**20:.0f}",
                "reserved less allocated": f"{side.unused / 2**20:.1f}",
                "wall time": f"{side.seconds:.2f}",
                "by native's": f"{side.seconds / native.seconds:.2f}",
                "processor time": f"{side.processor_seconds:.2f}",
                "by its": f"{side.processor_seconds / native.processor_seconds:.2f}",
            }
            out.write(json.dumps(row) + "\n")
