"""What the allocators cost a training step, and what memory they hold.

For each workload two processes per allocator stay alive, and all take turns: each runs the whole
workload again and again, so that neither clocks nor what is done for the first time favours one. Of
each step the fastest pass of both counts, because other users of the machine only ever add time,
and some processes are slow from beginning to end. A step is compared with the same step under
native; the table shows the median of these ratios, and the peaks of the first process's first pass.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.processes import ALLOCATORS, SIMULATED_ALLOCATORS, Child, ChildError
from benchmarks.records import report_problems, store
from benchmarks.turns import order
from tools.gpu import gpu_count

WORKLOADS = ("full_varlen", "lora_recompute", "generate_train", "conv", "moe", "fsdp_like")
OTHERS = ("conv_plain", "generate", "offload", "quantised_load")
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
    """Those after the warm-up (benchmarks/costs.py)."""
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
    """One record for each way: a name, and the options with which benchmarks.measure runs.

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
            name: stack.enter_context(Child("benchmarks.measure", [*way, *options], SECONDS))
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


def show(records: Sequence[Record], simulated: bool) -> None:
    table = Table("workload", "allocator", title="simulated GPU" if simulated else "training")
    for heading in ("step, ms", "of native", "allocated, GB", "reserved, GB", "ratio"):
        table.add_column(heading, justify="right")
    for record in records:
        if record.problem:
            table.add_row(record.workload, record.allocator, "failed")
            continue
        peers = (r for r in records if r.workload == record.workload and r.allocator == "native")
        native = next(peers, None)
        known = native is not None and not native.problem
        table.add_row(
            record.workload,
            record.allocator,
            f"{statistics.median(record.seconds) * 1e3:.2f}",
            f"{time_ratio(record, native):.3f}" if native is not None and known else "-",
            f"{record.peak_allocated / 1e9:.3f}",
            f"{record.peak_reserved / 1e9:.3f}",
            f"{record.peak_reserved / record.peak_allocated:.3f}",
        )
    Console().print(table)


def add_seconds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=float, default=TIMED_SECONDS, help="that each process is timed for"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--workloads", nargs="+", choices=(*WORKLOADS, *OTHERS), default=list(WORKLOADS)
    )
    parser.add_argument("--allocators", nargs="+", choices=ALLOCATORS)
    add_seconds(parser)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--output", type=Path, help="where the records go, as JSON")
    options = parser.parse_args(argv)
    simulated = gpu_count() == 0
    allocators = options.allocators or (SIMULATED_ALLOCATORS if simulated else ALLOCATORS)
    records: list[Record] = []
    for workload in options.workloads:
        records += run(workload, allocators, simulated, options.smoke, options.seconds)
        store(records, options.output)
    show(records, simulated)
    return report_problems(records)


if __name__ == "__main__":
    sys.exit(main())
