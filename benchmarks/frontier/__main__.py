"""The least memory that a workload runs in under each allocator, and the cost of that.

Each workload runs without a limit first, for its peaks, its time and the costs of
benchmarks/harness/costs.py. Then fresh processes run it under limits on the reserved memory
(`torch.cuda.set_per_process_memory_fraction`) until bisection has found the smallest under which it
finishes. This assumes that a run which finishes under one limit finishes under larger ones.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from benchmarks.frontier.limits import (
    JOBS_ON_GPU,
    JOBS_SIMULATED,
    WORKLOADS,
    Record,
    add_limit,
    rows,
)
from benchmarks.harness.processes import ALLOCATORS, SIMULATED_ALLOCATORS
from benchmarks.harness.records import print_table, report_problems, store
from benchmarks.training.passes import add_seconds, in_order, run
from tools.gpu import gpu_count

# Its limit would apply to the allocated memory, not to the reserved memory.
WITHOUT_LIMIT = ("cudaMallocAsync",)
RESOLUTION = 0.01  # of peak allocated


def show(records: Sequence[Record], simulated: bool) -> None:
    print_table("simulated GPU" if simulated else "frontier", *rows(records))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--allocators", nargs="+", choices=ALLOCATORS)
    parser.add_argument(
        "--resolution",
        type=float,
        default=RESOLUTION,
        help="how closely to find the limits, of peak allocated",
    )
    parser.add_argument(
        "--limits",
        nargs="*",
        choices=ALLOCATORS,
        help="find only the limits of these",
    )
    add_seconds(parser)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--output", type=Path, help="where the records go, as JSON")
    parser.add_argument("--picture", type=Path, help="where the picture goes")
    options = parser.parse_args(argv)
    simulated = gpu_count() == 0
    allocators = options.allocators or (SIMULATED_ALLOCATORS if simulated else ALLOCATORS)
    records: list[Record] = []

    for found in run(options.workloads, allocators, simulated, options.smoke, options.seconds):
        record = Record(**asdict(found))
        if simulated:
            record.seconds, record.seconds_beside = [], []
        records = in_order([*records, record], options.workloads, allocators)
        store(records, options.output)
    modes = ["--simulated"] * simulated + ["--smoke"] * options.smoke
    with ThreadPoolExecutor(JOBS_SIMULATED if simulated else JOBS_ON_GPU) as pool:
        wanted = set(allocators if options.limits is None else options.limits)
        wanted.difference_update(WITHOUT_LIMIT)
        limited = [r for r in records if not r.problem and r.allocator in wanted]
        futures = [pool.submit(add_limit, r, modes, options.resolution) for r in limited]
        for future in as_completed(futures):
            future.result()
            store(records, options.output)
    show(records, simulated)
    if options.picture is not None:
        # matplotlib is needed only here.
        from benchmarks.frontier.picture import draw

        draw(records, options.picture)
        print(f"picture: {options.picture}")
    return report_problems(records)


if __name__ == "__main__":
    sys.exit(main())
