"""The cost of running with hardly more memory than the program needs.

Each workload runs alone first, for its peak of allocated bytes. Then a process without a limit and
one that may reserve 1.015 times that peak take turns, pass by pass: the speed is the median of a
step's time without the limit by that of the same step under it. Driver calls and waits of the host
are those after the first quarter of the first pass, under the limit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.frontier.limits import JOBS_ON_GPU, JOBS_SIMULATED, UNIT, WORKLOADS, attempt
from benchmarks.harness.processes import SIMULATED_ALLOCATORS, ChildError
from benchmarks.harness.records import print_table, report_problems, store
from benchmarks.training import passes
from tools.gpu import gpu_count

SHARE = 1.015  # of peak allocated


@dataclass
class Record:
    """One allocator on one workload. Bytes and seconds; times of a real GPU only."""

    workload: str
    allocator: str
    limit: int = 0
    peak_allocated: int = 0
    seconds: list[float] = field(default_factory=list)
    seconds_without: list[float] = field(default_factory=list)
    """Seconds of the same steps without the limit."""
    speed: float | None = None
    costs: dict[str, Any] = field(default_factory=dict)
    ended_in: int | None = None
    """The pass that ran out of memory under the limit; 0 is the first."""
    problem: str = ""


def add_peak(record: Record, modes: Sequence[str]) -> None:
    try:
        found = attempt(record.workload, record.allocator, modes, limit=None)
    except ChildError as error:
        record.problem = str(error)
        return
    record.peak_allocated = found["peak_allocated"]
    pages = int(record.peak_allocated * SHARE) // UNIT
    record.limit = max(pages, -(-record.peak_allocated // UNIT)) * UNIT


def compare(record: Record, simulated: bool, smoke: bool) -> None:
    without = ["--allocator", record.allocator]
    ways = {"without": without, "within": [*without, "--limit", str(record.limit)]}
    found = passes.take_turns(record.workload, ways, ["within"], simulated, smoke)
    within = found["within"]
    record.problem = found["without"].problem or within.problem
    record.ended_in = within.ended_in
    record.costs = within.costs
    if not (simulated or record.problem or record.ended_in is not None):
        record.seconds, record.seconds_without = within.seconds, found["without"].seconds
        record.speed = passes.time_ratio(found["without"], within)


def rows(records: Sequence[Record]) -> tuple[Sequence[str], list[Sequence[str]]]:
    headings = ("workload", "allocator", "limit", "speed", "driver calls", "stalls", "slowest, ms")
    lines: list[Sequence[str]] = []
    for record in records:
        if record.problem:
            continue
        slowest = record.costs.get("slowest_ms")
        speed = "-" if record.speed is None else f"{record.speed:.3f}"
        if record.ended_in is not None:
            speed = f"out of memory in pass {record.ended_in + 1}"
        lines.append(
            (
                record.workload,
                record.allocator,
                f"{record.limit / record.peak_allocated:.3f}",
                speed,
                str(record.costs.get("driver_calls", "-")),
                str(record.costs.get("stalls", "-")),
                "-" if slowest is None else f"{slowest:.1f}",
            )
        )
    return headings, lines


def show(records: Sequence[Record], simulated: bool) -> None:
    where = "simulated GPU" if simulated else "near a full card"
    print_table(f"{where}: {SHARE} of peak allocated", *rows(records))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    # PyTorch's stream-ordered allocator has no limit on what it reserves.
    parser.add_argument(
        "--allocators",
        nargs="+",
        choices=SIMULATED_ALLOCATORS,
        default=list(SIMULATED_ALLOCATORS),
    )
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--output", type=Path, help="where the records go, as JSON")
    options = parser.parse_args(argv)
    simulated = gpu_count() == 0
    records = [Record(w, a) for w in options.workloads for a in options.allocators]
    modes = ["--simulated"] * simulated + ["--smoke"] * options.smoke
    # No time is measured here.
    with ThreadPoolExecutor(JOBS_SIMULATED if simulated else JOBS_ON_GPU) as pool:
        list(pool.map(lambda record: add_peak(record, modes), records))
    for record in records:
        if not record.problem:
            compare(record, simulated, options.smoke)
        store(records, options.output)
    show(records, simulated)
    return report_problems(records)


if __name__ == "__main__":
    sys.exit(main())
