"""The cost of the allocators for a training step, and the memory that they hold.

ferro_alloc takes turns with each of the others within one process, pass by pass of the same seeded
steps (benchmarks/training/switching.py). Of each step the fastest pass counts, because other users
of the machine only ever add time. A step is compared with the same step under the other allocator;
the table shows the median of these ratios, and the peaks of the first pass.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness.processes import ALLOCATORS, SIMULATED_ALLOCATORS
from benchmarks.harness.records import report_problems, store
from benchmarks.training.passes import Record, add_seconds, in_order, run, time_beside
from tools.gpu import gpu_count

WORKLOADS = ("full_varlen", "lora_recompute", "generate_train", "conv", "moe", "fsdp_like")
OTHERS = ("conv_plain", "generate", "offload", "quantised_load")


def show(records: Sequence[Record], simulated: bool) -> None:
    table = Table("workload", "allocator", title="simulated GPU" if simulated else "training")
    for heading in ("step, ms", "ferro_alloc's", "allocated, GB", "reserved, GB", "ratio"):
        table.add_column(heading, justify="right")
    for record in records:
        if record.problem:
            table.add_row(record.workload, record.allocator, "failed")
            continue
        table.add_row(
            record.workload,
            record.allocator,
            f"{statistics.median(record.seconds) * 1e3:.2f}",
            f"{time_beside(record):.3f}" if record.seconds_beside else "-",
            f"{record.peak_allocated / 1e9:.3f}",
            f"{record.peak_reserved / 1e9:.3f}",
            f"{record.peak_reserved / record.peak_allocated:.3f}",
        )
    Console().print(table)


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
    for record in run(options.workloads, allocators, simulated, options.smoke, options.seconds):
        records = in_order([*records, record], options.workloads, allocators)
        store(records, options.output)
    show(records, simulated)
    return report_problems(records)


if __name__ == "__main__":
    sys.exit(main())
