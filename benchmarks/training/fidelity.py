"""Does memory on the simulated GPU behave as on a real one?

Runs workloads under each allocator on the simulated GPU, each in a separate process, and stores
their peaks. `--compare` compares them with those that `benchmarks.frontier` stored for a real GPU:
it fails if reserved / allocated of a workload under one of PyTorch's own allocators differs by more
than 2 %.

`--clock` gives the simulated GPU a clock, so that steps have times and streams wait for each other;
`--compare` then shows both with those of the real GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness.processes import ROOT, Child, ChildError

RESULTS = ROOT / "benchmarks" / "results"
STORED = (RESULTS / "frontier_gpu.json", RESULTS / "conv_plain_gpu.json")
# Workloads of one stream, because the simulated GPU has no clock here: with several streams, memory
# waits for another stream on a real GPU but not on the simulated one.
WORKLOADS = (
    "full_varlen",
    "lora_recompute",
    "conv_plain",
    "moe",
    "generate",
    "generate_train",
    "offload",
    "quantised_load",
)
CLOCK_WORKLOADS = (*WORKLOADS, "fsdp_like")
# In clock time the time of the program is multiplied by this factor: docs/simulated-gpu.md.
PROGRAM = "x0.5"
# Of each step the fastest counts, because other programs on this machine only ever add time.
PASSES = 3
# PyTorch's own allocators judge the simulated GPU, because ferro_alloc's policy may have changed
# since the stored run.
JUDGES = ("native", "expandable")
ALLOCATORS = (*JUDGES, "ferro_alloc")
TOLERANCE = 0.02
JOBS = 2

Record = dict[str, Any]


def read(files: Sequence[Path]) -> list[Record]:
    return [record for file in files for record in json.loads(file.read_text())]


def ratio(record: Mapping[str, Any]) -> float:
    return float(record["peak_reserved"] / record["peak_allocated"])


def measure(workload: str, allocator: str, options: Sequence[str]) -> Record:
    """With a clock, the record has the times of the steps that `benchmarks.frontier` counts."""
    arguments = ["--workload", workload, "--allocator", allocator, *options]
    env = {"FERRO_SIM_PROGRAM": os.environ.get("FERRO_SIM_PROGRAM", PROGRAM)}
    with Child("benchmarks.harness.measure", arguments, env) as child:
        passes = []
        while "seconds" in (record := child.read()):
            passes.append(record["seconds"])
    # Without the clock, times are worthless, because other processes run.
    if "--clock" in options:
        record["seconds"] = [min(step) for step in zip(*passes, strict=True)]
    return record


def run(
    workloads: Sequence[str], allocators: Sequence[str], smoke: bool, clock: bool
) -> tuple[list[Record], list[str]]:
    """All records, in order, and the problems."""
    options = ["--simulated"] + ["--smoke"] * smoke
    if clock:
        options += ["--clock", "--passes", str(PASSES)]
    records, problems = [], []
    with ThreadPoolExecutor(1 if clock else JOBS) as pool:
        futures = [pool.submit(measure, w, a, options) for w in workloads for a in allocators]
        for future in futures:
            try:
                records.append(future.result())
            except ChildError as error:
                problems.append(str(error))
    return records, problems


def show(records: Sequence[Record], title: str) -> None:
    table = Table("workload", "allocated, GB", title=title)
    found = list(dict.fromkeys(record["allocator"] for record in records))
    for allocator in found:
        table.add_column(allocator, justify="right")
    for workload in dict.fromkeys(record["workload"] for record in records):
        row = {r["allocator"]: r for r in records if r["workload"] == workload}
        allocated = next(iter(row.values()))["peak_allocated"] / 1e9
        cells = [f"{ratio(row[name]):.3f}" if name in row else "-" for name in found]
        table.add_row(workload, f"{allocated:.2f}", *cells)
    Console().print(table)


def differences(stored: Sequence[Record], fresh: Sequence[Record]) -> list[str]:
    """Every workload whose ratio on the simulated GPU is off by more than the tolerance."""
    found = []
    known = {(r["workload"], r["allocator"]): r for r in stored}
    for record in fresh:
        key = (record["workload"], record["allocator"])
        if key not in known or record["allocator"] not in JUDGES:
            continue
        real, here = ratio(known[key]), ratio(record)
        if abs(here / real - 1) > TOLERANCE:
            found.append(f"{key[0]} under {key[1]}: {here:.3f} simulated, {real:.3f} on the GPU")
    return found


def compare(stored: Sequence[Record], fresh: Sequence[Record]) -> list[str]:
    known = {(r["workload"], r["allocator"]): r for r in stored}
    table = Table("workload", "allocator", title="peak reserved / peak allocated")
    for heading in ("GPU", "simulated", "difference"):
        table.add_column(heading, justify="right")
    for record in fresh:
        real = known.get((record["workload"], record["allocator"]))
        if real is None:
            continue
        there, here = ratio(real), ratio(record)
        cells = (f"{there:.3f}", f"{here:.3f}", f"{here / there - 1:+.1%}")
        table.add_row(record["workload"], record["allocator"], *cells)
    Console().print(table)
    return differences(stored, fresh)


def timed(
    stored: Sequence[Mapping[str, Any]], fresh: Sequence[Mapping[str, Any]]
) -> list[tuple[str, ...]]:
    """The median step and the peak of each record, with those of the real GPU."""
    known = {(r["workload"], r["allocator"]): r for r in stored}
    rows = []
    for record in fresh:
        name = (record["workload"], record["allocator"])
        pair = (known[name], record)
        steps = [1e3 * statistics.median(r["seconds"]) for r in pair]
        peaks = [ratio(r) for r in pair]
        times = (*(f"{step:,.1f}" for step in steps), f"{steps[1] / steps[0] - 1:+.0%}")
        rows.append(
            (*name, *times, *(f"{p:.3f}" for p in peaks), f"{peaks[1] / peaks[0] - 1:+.0%}")
        )
    return rows


def compare_times(stored: Sequence[Record], fresh: Sequence[Record]) -> None:
    table = Table("workload", "allocator", title="median step, ms; peak reserved / allocated")
    for heading in ("GPU", "simulated", "difference") * 2:
        table.add_column(heading, justify="right")
    for row in timed(stored, fresh):
        table.add_row(*row)
    Console().print(table)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=CLOCK_WORKLOADS, metavar="NAME")
    parser.add_argument("--allocators", nargs="+", choices=ALLOCATORS)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--clock", action="store_true", help="in clock time")
    parser.add_argument("--output", type=Path, help="where the records go, as JSON")
    parser.add_argument(
        "--compare",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="hold it against the records of a real GPU in these files, or in the stored ones",
    )
    options = parser.parse_args(argv)
    clock = options.clock
    stored = [] if options.compare is None else read(options.compare or STORED)
    workloads = options.workloads or (CLOCK_WORKLOADS if clock else WORKLOADS)
    allocators = options.allocators or (JUDGES if stored and not clock else ALLOCATORS)
    records, problems = run(workloads, allocators, options.smoke, clock)
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(records, indent=1) + "\n")
    if records:
        show(records, "simulated GPU")
    if stored and clock:
        compare_times(stored, records)
    elif stored:
        problems += compare(stored, records)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
