"""Is the largest batch that `simulate --what-if` finds the largest that fits on a real card?

For each family under each allocator: `simulate --what-if batch` on a simulated card of the family's
tight size, then the program on the real one with that batch and with one more, where the size is a
limit on what the allocator may reserve. The answer is right if the first fits and the second does
not. Without a GPU, `--simulated` uses the simulated one instead. Several run at the same time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.families.__main__ import (
    CARD,
    JOBS_ON_GPU,
    JOBS_SIMULATED,
    OUTSIDE,
    Share,
    environment,
)
from benchmarks.families.child import GPU, simulated_machine
from benchmarks.families.table import FAMILIES, MIB, Family
from benchmarks.harness.processes import ROOT, SIMULATED_ALLOCATORS, Child, ChildError
from benchmarks.harness.records import print_table, report_problems, store
from ferro_alloc.fit._result import DOES_NOT_FIT, FITS_AS_FAR_AS_KNOWN
from tools import patience
from tools.gpu import gpu_count

SMOKE_LIMIT = 288  # MiB


@dataclass
class Record:
    family: str
    allocator: str
    limit: int  # MiB that the allocator may reserve
    largest: int = 0
    """The answer of `simulate --what-if`; 0 if none fits."""
    tried: list[int] = field(default_factory=list)
    fits: bool = False
    one_more_fits: bool = True
    problem: str = ""

    @property
    def is_right(self) -> bool:
        return self.fits and not self.one_more_fits


@dataclass(frozen=True)
class Question:
    family: str
    allocator: str
    smoke: bool

    @property
    def program(self) -> Family:
        return FAMILIES[self.family]

    @property
    def limit(self) -> int:
        return SMOKE_LIMIT if self.smoke else self.program.limit("tight")


def ask(question: Question, folder: str) -> tuple[int, list[int]]:
    """The answer on the simulated card, and the tried sizes."""
    memory = simulated_machine(question.limit * MIB, 1)["memory"]
    answer = Path(folder) / "answer.json"
    command = [sys.executable, "-m", "ferro_alloc", "simulate", "--gpu", GPU]
    command += ["--memory", f"{memory}b", "--allocator", question.allocator]
    command += ["--what-if", "batch", "--json", str(answer), "-m", "benchmarks.families.fixed"]
    command += [question.family, "--batch", str(question.program.batch(question.smoke))]
    command += ["--smoke"] * question.smoke
    done = patience.run(command, dict(os.environ) | environment(folder, one_device=False), ROOT)
    if not answer.exists():
        raise ValueError(f"{question.family}: {done.stderr[-2000:]}")
    found = json.loads(answer.read_text())
    if found["exit_status"] not in (0, DOES_NOT_FIT, FITS_AS_FAR_AS_KNOWN):
        raise ValueError(f"{question.family}: {done.stderr[-2000:]}")
    return found["largest"] or 0, [each["value"] for each in found["tries"]]


def fits(question: Question, batch: int, simulated: bool, folder: str) -> bool:
    words = ["--family", question.family, "--allocator", question.allocator]
    words += ["--limit", str(question.limit), "--batch", str(batch)]
    words += ["--simulated"] * simulated + ["--smoke"] * question.smoke
    env = environment(folder, one_device=not simulated)
    with Child("benchmarks.families.child", words, env) as child:
        return bool(child.read()["fits"])


def answer(question: Question, simulated: bool, card: Share) -> Record:
    record = Record(question.family, question.allocator, question.limit)
    with tempfile.TemporaryDirectory() as folder:
        try:
            record.largest, record.tried = ask(question, folder)
            with card.hold(question.limit + OUTSIDE):
                record.fits = record.largest > 0 and fits(
                    question, record.largest, simulated, folder
                )
                record.one_more_fits = fits(question, record.largest + 1, simulated, folder)
        except (ChildError, ValueError) as error:
            record.problem = f"{question.family} {question.allocator}: {error}"
    return record


def run(options: argparse.Namespace) -> list[Record]:
    names = options.only or [
        name
        for name, family in FAMILIES.items()
        if family.ranks == 1 and (family.smoke if options.smoke else not family.missing())
    ]
    questions = [Question(n, a, options.smoke) for a in options.allocators for n in names]
    card = Share(sys.maxsize if options.simulated else CARD)
    records: list[Record] = []
    began = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = [pool.submit(answer, each, options.simulated, card) for each in questions]
        for future in as_completed(futures):
            record = future.result()
            records.append(record)
            store(records, options.output)
            said = record.problem or f"{record.largest}, {'right' if record.is_right else 'wrong'}"
            print(
                f"{time.monotonic() - began:5.0f} s {record.family} {record.allocator}: {said}",
                file=sys.stderr,
                flush=True,
            )
    return sorted(records, key=lambda each: list(FAMILIES).index(each.family))


HEADINGS = ("family", "allocator", "card, MiB", "largest batch", "fits", "one more fits")


def rows(records: Sequence[Record]) -> list[tuple[str, ...]]:
    told = {False: "no", True: "yes"}
    return [
        (
            each.family,
            each.allocator,
            f"{each.limit:,}",
            str(each.largest),
            told[each.fits],
            told[each.one_more_fits],
        )
        for each in records
        if not each.problem
    ]


def show(records: Sequence[Record]) -> None:
    print_table("the largest batch", HEADINGS, rows(records))
    right = sum(each.is_right for each in records)
    print(f"{right} of {len(records)} answers are right")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--simulated", action="store_true", help="use the simulated GPU instead of a real card too"
    )
    parser.add_argument("--only", nargs="+", choices=FAMILIES, metavar="NAME")
    parser.add_argument(
        "--allocators", nargs="+", choices=SIMULATED_ALLOCATORS, default=list(SIMULATED_ALLOCATORS)
    )
    parser.add_argument(
        "--smoke", action="store_true", help="two tiny families, to test that it runs"
    )
    parser.add_argument("--jobs", type=int, help="questions at the same time")
    parser.add_argument("--output", type=Path, help="the records, as JSON")
    options = parser.parse_args(argv)
    if not options.simulated and gpu_count() == 0:
        parser.error("there is no GPU: add --simulated")
    options.jobs = options.jobs or (JOBS_SIMULATED if options.simulated else JOBS_ON_GPU)
    records = run(options)
    show(records)
    return report_problems(records)


if __name__ == "__main__":
    sys.exit(main())
