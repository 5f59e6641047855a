"""Cases measured under several allocators in turns, one process each, so drift favours none.

A benchmark passes the names of its cases and a function for each, which takes the seconds that it
may use and returns nanoseconds. This module has the command line, the children and the table.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness.processes import (
    ALLOCATORS,
    SIMULATED_ALLOCATORS,
    Child,
    ChildError,
    say,
    use_allocator,
    wait_for_parent,
)
from benchmarks.harness.records import report_problems, store
from tools.gpu import gpu_count

MOST_PASSES = 12

Case = Callable[[float], float]
"""Takes the seconds that it may use; returns the nanoseconds of one operation."""


@dataclass
class Record:
    allocator: str
    nanoseconds: dict[str, list[float]] = field(default_factory=dict)
    """One value per round for each case."""
    problem: str = ""

    def median(self, case: str) -> float:
        return statistics.median(self.nanoseconds[case])


def parser(description: str | None, rounds: int, seconds: float) -> argparse.ArgumentParser:
    """The options that every such benchmark has."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--allocators", nargs="+", choices=ALLOCATORS)
    made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument("--seconds", type=float, default=seconds, help="for each case")
    made.add_argument("--smoke", action="store_true", help="moments only: does it run?")
    made.add_argument("--output", type=Path, help="where the records go, as JSON")
    made.add_argument("--child", choices=ALLOCATORS, help=argparse.SUPPRESS)
    made.add_argument("--simulated", action="store_true", help=argparse.SUPPRESS)
    return made


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; `--smoke` means one round of moments."""
    options = parser.parse_args(argv)
    if options.smoke:
        options.rounds, options.seconds = 1, 0.01
    return options


def order(names: Sequence[str], turn: int) -> Sequence[str]:
    """The order of one round: each is first equally often; of three, none has two turns in a row.

    A process that continued after its own last turn was slower: a replayed graph by 150 us, under
    each allocator.
    """
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def enough_passes(timed_seconds: float, seconds: float) -> int:
    """The number of timed passes if one takes so long."""
    return min(math.ceil(timed_seconds / seconds), MOST_PASSES)


def child(
    options: argparse.Namespace, cases: Callable[[], Mapping[str, Case]], cards: int = 1
) -> int:
    """Measures all cases in each round. `cases` is called with CUDA in use.

    `cards` is the number of simulated ones.
    """
    use_allocator(options.child, options.simulated, count=cards)
    import torch

    torch.cuda.init()
    torch.empty(1, device="cuda")
    measured = cases()
    for _ in range(options.rounds):
        wait_for_parent()
        say(**{name: run(options.seconds) for name, run in measured.items()})
    return 0


def run(module: str, arguments: Sequence[str], options: argparse.Namespace) -> list[Record]:
    """Runs the benchmark under each allocator; `arguments` are those of its children."""
    simulated = gpu_count() == 0
    allocators = options.allocators or (SIMULATED_ALLOCATORS if simulated else ALLOCATORS)
    records = {name: Record(name) for name in allocators}
    common = ["--rounds", str(options.rounds), "--seconds", str(options.seconds), *arguments]
    common += ["--simulated"] * simulated
    with ExitStack() as stack:
        children = {}
        for name in allocators:
            process = Child(module, ["--child", name, *common])
            children[name] = stack.enter_context(process)
        for number in range(options.rounds):
            for name in order(allocators, number):
                record = records[name]
                if record.problem:
                    continue
                try:
                    children[name].read()  # "waiting"
                    children[name].go_on()
                    for case, nanoseconds in children[name].read().items():
                        record.nanoseconds.setdefault(case, []).append(nanoseconds)
                except ChildError as error:
                    record.problem = str(error)
    return list(records.values())


def show(records: Sequence[Record], title: str) -> None:
    table = Table("nanoseconds (of native)", title=title)
    working = [record for record in records if not record.problem]
    for record in working:
        table.add_column(record.allocator, justify="right")
    native = next((r for r in working if r.allocator == "native"), None)
    for case in working[0].nanoseconds if working else ():
        cells = []
        for record in working:
            if case not in record.nanoseconds:
                cells.append("-")
                continue
            text = f"{record.median(case):,.0f}"
            if native is not None and record is not native:
                text += f" ({record.median(case) / native.median(case):.2f})"
            cells.append(text)
        table.add_row(case, *cells)
    Console().print(table)


def report(records: Sequence[Record], title: str, options: argparse.Namespace) -> int:
    """Shows and stores the records; returns the exit status."""
    if gpu_count() == 0:
        print("simulated GPU: the allocators' own work is real, the driver's is not")
    show(records, title)
    store(records, options.output)
    return report_problems(records)
