"""What the allocators cost a training step, and what memory they hold.

For each workload one process per allocator stays alive, and they take turns, a few steps each, so
that clocks and temperature do not favour one. A step is compared with the same step under native;
the table shows the median of these ratios and the peaks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.processes import ALLOCATORS, SIMULATED_ALLOCATORS, Child, ChildError
from benchmarks.records import report_problems, store
from benchmarks.turns import order
from tools.gpu import gpu_count

WORKLOADS = ("full_varlen", "lora_recompute", "generate_train", "conv", "moe", "fsdp_like")
ROUNDS = 4  # of which the first warms up
SECONDS = 200


@dataclass
class Record:
    """One allocator on one workload. Bytes and seconds; times without the warm-up round."""

    workload: str
    allocator: str
    seconds: list[float] = field(default_factory=list)
    peak_allocated: int = 0
    peak_active: int = 0
    peak_reserved: int = 0
    device_used: int = 0
    costs: dict[str, Any] = field(default_factory=dict)
    """Those after the warm-up (benchmarks/costs.py)."""
    ended_in: int | None = None
    """The step that ran out of memory, under a limit: a result, not a problem."""
    problem: str = ""

    def goes_on(self) -> bool:
        return not self.problem and self.ended_in is None


def run(
    workload: str, allocators: Sequence[str], simulated: bool, smoke: bool, rounds: int
) -> list[Record]:
    ways = {name: ["--allocator", name] for name in allocators}
    return list(take_turns(workload, ways, simulated, smoke, rounds).values())


def take_turns(
    workload: str, ways: Mapping[str, Sequence[str]], simulated: bool, smoke: bool, rounds: int
) -> dict[str, Record]:
    """One record for each way: a name, and the options with which benchmarks.measure runs."""
    names = list(ways)
    records = {name: Record(workload, name) for name in names}
    options = ["--workload", workload, "--rounds", str(rounds)]
    options += ["--simulated"] * simulated + ["--smoke"] * smoke
    with ExitStack() as stack:
        children = {
            name: stack.enter_context(Child("benchmarks.measure", [*way, *options], SECONDS))
            for name, way in ways.items()
        }

        def read(name: str) -> dict[str, Any]:
            said = children[name].read()
            if "out_of_memory" in said:
                records[name].ended_in = said["out_of_memory"]["step"]
            return said

        def attempt(name: str, number: int, start: bool, finish: bool) -> None:
            """Starts a round and waits for its end; a child that failed is left out from then."""
            record = records[name]
            try:
                if start and record.goes_on():
                    read(name)  # it waits
                    children[name].go_on()
                if finish and record.goes_on():
                    seconds = read(name).get("seconds", [])
                    record.seconds += seconds if number > 0 else []
            except ChildError as error:
                record.problem = str(error)

        # All set themselves up at once; then they take turns, in another order each round.
        for name in names:
            attempt(name, 0, start=True, finish=False)
        for name in names:
            attempt(name, 0, start=False, finish=True)
        for number in range(1, rounds):
            for name in order(names, number):
                attempt(name, number, start=True, finish=True)
        for name, record in records.items():
            if not record.goes_on():
                continue
            try:
                last = read(name)
            except ChildError as error:
                record.problem = str(error)
                continue
            if not record.goes_on():
                continue
            for key in ("peak_allocated", "peak_active", "peak_reserved", "device_used", "costs"):
                setattr(record, key, last[key])
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


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--allocators", nargs="+", choices=ALLOCATORS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--output", type=Path, help="where the records go, as JSON")
    options = parser.parse_args(argv)
    simulated = gpu_count() == 0
    rounds = 2 if options.smoke else options.rounds
    allocators = options.allocators or (SIMULATED_ALLOCATORS if simulated else ALLOCATORS)
    records: list[Record] = []
    for workload in options.workloads:
        records += run(workload, allocators, simulated, options.smoke, rounds)
        store(records, options.output)
    show(records, simulated)
    return report_problems(records)


if __name__ == "__main__":
    sys.exit(main())
