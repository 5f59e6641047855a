"""Passes of a workload under several allocators in turns: records, and comparison of times."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

from benchmarks.harness.processes import OURS, Child, ChildError
from benchmarks.harness.turns import enough_passes, order

# The seconds for which each allocator is timed, in passes after the first, which warms up.
TIMED_SECONDS = 4.0


@dataclass
class Record:
    """One allocator on one workload. Bytes and seconds."""

    workload: str
    allocator: str
    seconds: list[float] = field(default_factory=list)
    """Of each step, in the fastest of the passes after the first."""
    seconds_beside: list[float] = field(default_factory=list)
    """Of the same steps under ferro_alloc, in turns within the same process. Empty where there was
    none, and for ferro_alloc itself."""
    passes: int = 0
    peak_allocated: int = 0
    peak_active: int = 0
    peak_reserved: int = 0
    device_used: int = 0
    costs: dict[str, Any] = field(default_factory=dict)
    """The costs after the warm-up (benchmarks/harness/costs.py)."""
    ended_in: int | None = None
    """The pass that ran out of memory, under a limit: a result, not a problem. 0 is the first."""
    problem: str = ""

    def goes_on(self) -> bool:
        return not self.problem and self.ended_in is None

    def add_pass(self, seconds: Sequence[float]) -> None:
        self.seconds = fastest([self.seconds or seconds, seconds])
        self.passes += 1


AnyRecord = TypeVar("AnyRecord", bound=Record)


def run(
    workloads: Sequence[str],
    allocators: Sequence[str],
    simulated: bool,
    smoke: bool,
    timed_seconds: float = TIMED_SECONDS,
) -> Iterator[Record]:
    """Runs each allocator on each workload, in one process with ferro_alloc if that is among them.

    ferro_alloc's own records are those of its process with the first of the others.
    """
    beside = OURS in allocators
    processes = [name for name in allocators if name != OURS] or [OURS]
    options = ["--workloads", *workloads, "--seconds", str(timed_seconds)]
    options += ["--simulated"] * simulated + ["--smoke"] * smoke
    for name in processes:
        alone = name == OURS or not beside
        arguments = ["--allocator", name, *options, *["--alone"] * alone]
        ours_too = beside and not alone and name == processes[0]
        with Child("benchmarks.training.switching", arguments) as child:
            for workload in workloads:
                try:
                    found = child.read()["allocators"]
                except ChildError as error:
                    yield Record(workload, name, problem=str(error))
                    if ours_too:
                        yield Record(workload, OURS, problem=f"it ran beside {name}, which failed")
                    continue
                record = record_of(workload, name, found[name])
                if not alone:
                    record.seconds_beside = fastest(found[OURS]["passes"])
                yield record
                if ours_too:
                    yield record_of(workload, OURS, found[OURS])


def in_order(
    records: Iterable[AnyRecord], workloads: Sequence[str], allocators: Sequence[str]
) -> list[AnyRecord]:
    def place(record: AnyRecord) -> tuple[int, int]:
        return workloads.index(record.workload), allocators.index(record.allocator)

    return sorted(records, key=place)


def record_of(workload: str, allocator: str, found: Mapping[str, Any]) -> Record:
    record = Record(workload, allocator, passes=len(found["passes"]))
    record.seconds = fastest(found["passes"])
    keep_peaks(record, found)
    return record


def fastest(passes: Sequence[Sequence[float]]) -> list[float]:
    """The fastest of each step, because other programs on the machine only ever add time."""
    return [min(step) for step in zip(*passes, strict=True)]


def keep_peaks(record: Record, found: Mapping[str, Any]) -> None:
    for key in ("peak_allocated", "peak_active", "peak_reserved", "device_used", "costs"):
        setattr(record, key, found[key])


def take_turns(
    workload: str,
    ways: Mapping[str, Sequence[str]],
    alone: Sequence[str],
    simulated: bool,
    smoke: bool,
    timed_seconds: float = TIMED_SECONDS,
) -> dict[str, Record]:
    """One record for each way: a name, and the options with which benchmarks.harness.measure runs.

    The ways of `alone` have exclusive use of the GPU in their first pass, whose peaks and costs
    count; with other processes a single request took up to 94 ms. On the simulated GPU, whose times
    mean nothing, and for a smoke test one pass is timed.
    """
    names = list(ways)
    records = {name: Record(workload, name) for name in names}
    options = ["--workload", workload, "--in-turns"]
    options += ["--simulated"] * simulated + ["--smoke"] * smoke
    with ExitStack() as stack:
        children = {
            name: stack.enter_context(Child("benchmarks.harness.measure", [*way, *options]))
            for name, way in ways.items()
        }

        def attempt(name: str, do: Callable[[Child, Record], object]) -> None:
            """Later steps skip a child that failed."""
            if records[name].goes_on():
                try:
                    do(children[name], records[name])
                except ChildError as error:
                    records[name].problem = str(error)

        def start(child: Child, record: Record) -> None:
            child.read()  # "waiting"
            child.go_on()

        def finish(child: Child, record: Record) -> list[float]:
            said = child.read()
            if "out_of_memory" in said:
                record.ended_in = said["out_of_memory"]["pass"]
                if record.ended_in:
                    keep_peaks(record, said)
            seconds: list[float] = said.get("seconds", [])
            return seconds

        def time_pass(child: Child, record: Record) -> None:
            start(child, record)
            if seconds := finish(child, record):
                record.add_pass(seconds)

        def stop(child: Child, record: Record) -> None:
            child.read()  # "waiting"
            child.go_on(stop=True)
            keep_peaks(record, child.read())

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


def median_ratio(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """The median ratio of a step's time to that of the same step."""
    return statistics.median(one / other for one, other in zip(mine, theirs, strict=True))


def time_beside(record: Record) -> float:
    """The median ratio of ferro_alloc's time of a step to this allocator's, in one process."""
    return median_ratio(record.seconds_beside, record.seconds)


def time_ratio(record: Record, other: Record) -> float:
    """The median ratio of a step's time to that of the same step in the other."""
    return median_ratio(record.seconds, other.seconds)


def add_seconds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds",
        type=float,
        default=TIMED_SECONDS,
        help="that each allocator is timed for, on each workload",
    )
