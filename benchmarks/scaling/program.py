"""Host time of the core's operations in small and large worlds: does cost grow with size?

Blocks, streams and private pools grow in turn, a thousandfold or more. The loops are C++
(scaling.cpp) and run without torch over a driver that takes no time, so only the allocator's own
work remains.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness.cpp_program import build, run
from benchmarks.harness.markdown import markdown
from benchmarks.harness.records import store

SIZES: Mapping[str, tuple[int, int]] = {
    "blocks": (1_000, 1_000_000),
    "streams": (2, 1_000),
    "pools": (1, 10_000),
}
SMOKE_SIZES: dict[str, tuple[int, int]] = {
    "blocks": (100, 1_000),
    "streams": (2, 100),
    "pools": (1, 100),
}
MEMORY_GIB, ADDRESSES_TIB = 192, 128  # of a device, and of a process
ROUNDS, MILLISECONDS = 5, 50

# With b blocks in a heap, f of them free: those larger than 1 MiB, or those of one smaller size; k
# handles that a step moves, takes or releases; h heaps, of which c changed since the last query and
# g have free pages; p pools.
COMPLEXITY: Mapping[str, str] = {
    "hit, a size that repeats": "log f",
    "hit, split and merged back": "log f",
    "hit, two streams in turns": "c",
    "free in random order": "log f + c",
    "free: the slowest": "log f + c",
    "free: the slowest but five": "log f + c",
    "free: the slowest, in the thread's own time": "log f + c",
    "free of 512 B, 20,000 in a row": "log f",
    "free of 512 B: the slowest, in the thread's own time": "log f",
    "miss that moves pages": "log f + k",
    "miss that takes idle pages": "log f + k",
    "miss that grows": "log f + k + c",
    "allocate, record_stream, free, collect": "1",
    "collect while 100 frees wait": "streams waited for",
    "DeviceStats::read": "c",
    "reserved": "p",
    "view": "h",
    "largest_free_block": "h",
    "counters": "1",
    "bytes_from_driver": "log f + g",
    "reserved_by_pool": "p",
    "hold_pool": "log p",
    "first allocation in a pool": "log p",
    "release_pool, empty_pool": "log p + c + g",
    "diversion: begin, end, release_pool": "log p",
    "export_block": "k",
    "live_block_around": "size of the block",
    "segments": "b of all heaps",
}


@dataclass
class Record:
    operation: str
    dimension: str
    """The size in which the two worlds differ."""
    result_grows: bool
    """Whether the result grows with the world, so that the time must too."""
    sizes: tuple[int, int]
    nanoseconds: tuple[list[float], list[float]]
    """Values of the small and of the large world, one per round."""
    problems: tuple[str, str]
    memory_gib: int
    addresses_tib: int


def measure(program: Path, dimension: str, options: argparse.Namespace) -> list[Record]:
    sizes = (SMOKE_SIZES if options.smoke else SIZES)[dimension]
    common = (SMOKE_SIZES if options.smoke else SIZES)["blocks"][0]
    numbers = [*sizes, common, options.rounds, options.milliseconds]
    numbers += [options.memory_gib, options.addresses_tib]
    found = json.loads(run([str(program), dimension, *map(str, numbers)]))
    world = {"memory_gib": options.memory_gib, "addresses_tib": options.addresses_tib}
    return [Record(dimension=dimension, **world, **figure) for figure in found]


def in_words(nanoseconds: float) -> str:
    """At most three digits, and a unit."""
    for unit in ("ns", "us", "ms"):
        if nanoseconds < 999.5:
            return f"{nanoseconds:.{0 if nanoseconds >= 10 else 1}f} {unit}"
        nanoseconds /= 1_000
    return f"{nanoseconds:.1f} s"


def cells(record: Record | None) -> tuple[str, str, str]:
    """Small, large and their ratio; "-" for a value that was not measured."""
    if record is None:
        return ("-", "-", "-")
    small, large = (statistics.median(times) if times else None for times in record.nanoseconds)
    ratio = "-" if small is None or large is None or small == 0 else f"{large / small:,.1f}"
    return (
        "-" if small is None else in_words(small),
        "-" if large is None else in_words(large),
        ratio,
    )


def rows(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Headings and lines of the table: one line for each operation, medians of the rounds."""
    headings = ["operation", "complexity"]
    by_dimension: dict[str, dict[str, Record]] = {}
    for record in records:
        by_dimension.setdefault(record.dimension, {})[record.operation] = record
    for dimension, found in by_dimension.items():
        small, large = next(iter(found.values())).sizes
        word = dimension.removesuffix("s") if small == 1 else dimension
        headings += [f"{small:,} {word}", f"{large:,} {dimension}", "ratio"]
    grows = {record.operation: record.result_grows for record in records}
    lines = []
    for operation, result_grows in grows.items():
        name = f"{operation} (its result grows)" if result_grows else operation
        line = [name, COMPLEXITY[operation]]
        for found in by_dimension.values():
            line += cells(found.get(operation))
        lines.append(line)
    return headings, lines


def problems(records: Sequence[Record]) -> list[str]:
    """Each problem once, with the size of the world."""
    found = {
        f"{size:,} {record.dimension}: {problem}"
        for record in records
        for size, problem in zip(record.sizes, record.problems, strict=True)
        if problem
    }
    return sorted(found)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dimensions", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--milliseconds", type=int, default=MILLISECONDS, help="a figure and round")
    parser.add_argument("--memory-gib", type=int, default=MEMORY_GIB, help="of the device")
    parser.add_argument("--addresses-tib", type=int, default=ADDRESSES_TIB, help="of the process")
    parser.add_argument("--program", type=Path, help="a program that is already built")
    parser.add_argument("--smoke", action="store_true", help="small worlds, for a moment each")
    parser.add_argument("--json", action="store_true", help="print the records, not the table")
    parser.add_argument("--output", type=Path, help="where the records go, as JSON")
    options = parser.parse_args(argv)
    if options.smoke:
        options.rounds, options.milliseconds = 1, 1
    program = options.program or build("scaling")
    records: list[Record] = []
    for dimension in options.dimensions:
        records += measure(program, dimension, options)
        store(records, options.output)
    if options.json:
        print(json.dumps([asdict(record) for record in records], indent=1))
    else:
        print(markdown(*rows(records)), end="")
    for problem in problems(records):
        print(problem, file=sys.stderr)
    return 1 if problems(records) else 0
