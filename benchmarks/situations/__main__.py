"""Seven situations in which the memory of CUDA graphs surprises, under each allocator.

Each program of this folder runs in a fresh process. The table shows the reserved MiB of each of its
ways: the peak, the remainder after `empty_cache()`, and the part of that in the graphs' pools.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.harness.processes import Child, ChildError, use_allocator
from benchmarks.harness.records import print_table, report_problems, store
from benchmarks.situations import ALLOCATORS, MIB, NAMES, SMOKE_MIB, rows
from tools.gpu import gpu_count


@dataclass
class Record:
    """One program under one allocator. Bytes."""

    situation: str
    allocator: str
    ways: dict[str, dict[str, int]] = field(default_factory=dict)
    """The fields of `situations.Figures`, by way."""
    problem: str = ""


def child(options: argparse.Namespace) -> int:
    """The program itself, with the allocator in place before it imports torch."""
    use_allocator(options.child, options.simulated)
    (name,) = options.situations
    sys.argv = [name, "--mib", str(options.mib)]
    runpy.run_module(f"benchmarks.situations.{name}", run_name="__main__", alter_sys=True)
    return 0


def run(situation: str, allocator: str, mib: int, simulated: bool) -> Record:
    arguments = ["--child", allocator, "--situations", situation, "--mib", str(mib)]
    arguments += ["--simulated"] * simulated
    record = Record(situation, allocator)
    with Child("benchmarks.situations", arguments) as process:
        try:
            record.ways = process.read()
        except ChildError as error:
            record.problem = str(error)
    return record


def show(records: Sequence[Record], title: str) -> None:
    headings, lines = rows([asdict(record) for record in records])
    named = [[*(cell.replace("_", " ") for cell in line[:2]), *line[2:]] for line in lines]
    print_table(title, headings, named)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--situations", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--allocators", nargs="+", choices=ALLOCATORS, default=list(ALLOCATORS))
    parser.add_argument("--mib", type=int, default=MIB, help="size of the largest tensors")
    parser.add_argument("--smoke", action="store_true", help="small tensors: does it run?")
    parser.add_argument("--output", type=Path, help="where the records go, as JSON")
    parser.add_argument("--child", choices=ALLOCATORS, help=argparse.SUPPRESS)
    parser.add_argument("--simulated", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child is not None:
        return child(options)
    simulated = gpu_count() == 0
    mib = SMOKE_MIB if options.smoke else options.mib
    records: list[Record] = []
    for situation in options.situations:
        records += [run(situation, name, mib, simulated) for name in options.allocators]
        store(records, options.output)
    where = "simulated GPU, " if simulated else ""
    show(records, f"{where}tensors of {mib} MiB; MiB reserved: peak / emptied / graph pools")
    return report_problems(records)


if __name__ == "__main__":
    sys.exit(main())
