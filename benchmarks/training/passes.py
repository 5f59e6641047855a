"""Passes of a workload under several allocators in turns: their records, and how times compare."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.harness.processes import Child, ChildError
from benchmarks.harness.turns import order

# What each process is timed for, in passes after the first, which warms up.
TIMED_SECONDS = 4.0
MOST_PASSES = 12
PROCESSES = 2  # of each allocator where time is measured
SECONDS = 240


@dataclass
class Record:
    """One allocator on one workload. Bytes and seconds."""

    workload: str
    allocator: str
    seconds: list[float] = field(default_factory=list)
    """Of each step, in the fastest of the passes after the first, of all processes."""
    passes: int = 0
    peak_allocated: int = 0
    peak_active: int = 0
    peak_reserved: int = 0
    device_used: int = 0
    costs: dict[str, Any] = field(default_factory=dict)
    """Those after the warm-up (benchmarks/harness/costs.py)."""
    ended_in: int | None = None
    """The pass that ran out of memory, under a limit: a result, not a problem. 0 is the first."""
    problem: str = ""

    def goes_on(self) -> bool:
        return not self.problem and self.ended_in is None

    def add_pass(self, seconds: Sequence[float], passes: int = 1) -> None:
        self.seconds = [min(pair) for pair in zip(self.seconds or seconds, seconds, strict=True)]
        self.passes += passes

    def add(self, other: Record) -> None:
        """The times of another process of the same."""
        self.problem = self.problem or other.problem
        if other.goes_on():
            self.add_pass(other.seconds, other.passes)


def run(
    workload: str,
    allocators: Sequence[str],
    simulated: bool,
    smoke: bool,
    timed_seconds: float = TIMED_SECONDS,
) -> list[Record]:
    copies = range(1 if simulated else PROCESSES)
    names = {f"{name} {copy}": name for copy in copies for name in allocators}
    ways = {way: ["--allocator", name] for way, name in names.items()}
    alone = [f"{name} 0" for name in allocators]
    found = take_turns(workload, ways, alone, simulated, smoke, timed_seconds)
    records = []
    for name in allocators:
        first, *others = (record for way, record in found.items() if names[way] == name)
        records.append(replace(first, allocator=name))
        for other in others:
            records[-1].add(other)
    return records


def enough_passes(timed_seconds: float, seconds: float) -> int:
    """How many passes are timed when one takes so long."""
    return min(math.ceil(timed_seconds / seconds), MOST_PASSES)


def take_turns(
    workload: str,
    ways: Mapping[str, Sequence[str]],
    alone: Sequence[str],
    simulated: bool,
    smoke: bool,
    timed_seconds: float = TIMED_SECONDS,
) -> dict[str, Record]:
    """One record for each way: a name, and the options with which benchmarks.harness.measure runs.

    The ways of `alone` have the GPU for themselves in their first pass too, whose peaks and costs
    count; beside others a single request was seen to take 94 ms. On the simulated GPU, whose times
    say nothing, and for a smoke test one pass is timed.
    """
    names = list(ways)
    records = {name: Record(workload, name) for name in names}
    options = ["--workload", workload, "--in-turns"]
    options += ["--simulated"] * simulated + ["--smoke"] * smoke
    with ExitStack() as stack:
        children = {
            name: stack.enter_context(
                Child("benchmarks.harness.measure", [*way, *options], SECONDS)
            )
            for name, way in ways.items()
        }

        def attempt(name: str, do: Callable[[Child, Record], object]) -> None:
            """A child that failed is left out from then."""
            if records[name].goes_on():
                try:
                    do(children[name], records[name])
                except ChildError as error:
                    records[name].problem = str(error)

        def start(child: Child, record: Record) -> None:
            child.read()  # it waits
            child.go_on()

        def keep_last(record: Record, last: Mapping[str, Any]) -> None:
            for key in ("peak_allocated", "peak_active", "peak_reserved", "device_used", "costs"):
                setattr(record, key, last[key])

        def finish(child: Child, record: Record) -> list[float]:
            said = child.read()
            if "out_of_memory" in said:
                record.ended_in = said["out_of_memory"]["pass"]
                if record.ended_in:
                    keep_last(record, said)
            seconds: list[float] = said.get("seconds", [])
            return seconds

        def time_pass(child: Child, record: Record) -> None:
            start(child, record)
            if seconds := finish(child, record):
                record.add_pass(seconds)

        def stop(child: Child, record: Record) -> None:
            child.read()  # it waits
            child.go_on(stop=True)
            keep_last(record, child.read())

        # The others warm up at once; then all take turns, in another order each.
        lone = () if simulated or smoke else alone
        for name in lone:
            attempt(name, start)
            attempt(name, finish)
        for name in names:
            if name not in lone:
                attempt(name, start)
        for name in names:
            if name not in lone:
                attempt(name, finish)

        def take_turn(number: int) -> None:
            for name in order(names, number):
                attempt(name, time_pass)

        take_turn(1)
        if not (simulated or smoke):
            times = [sum(record.seconds) for record in records.values() if record.goes_on()]
            passes = enough_passes(timed_seconds, max(times, default=timed_seconds))
            for number in range(2, passes + 1):
                take_turn(number)
        for name in names:
            attempt(name, stop)
    return records


def time_ratio(record: Record, other: Record) -> float:
    """Median of a step's time by that of the same step in the other."""
    pairs = zip(record.seconds, other.seconds, strict=True)
    return statistics.median(mine / theirs for mine, theirs in pairs)


def add_seconds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=float, default=TIMED_SECONDS, help="that each process is timed for"
    )
