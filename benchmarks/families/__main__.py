"""Is the memory of public model families on the simulated GPU that of a real one?

Each family runs under each allocator on five sizes of card, each time in a separate process: three
are the same for all allocators, two lie 2 % above and below what this allocator reserved on a GPU.
Without `--simulated` the card is a real one, and a size is a limit on the reserved memory. Several
processes then run at once: the memory that a program reserves does not depend on others as long as
the card itself is not full. `--compare` runs nothing: it compares the records in `--output` with
those of a real GPU, and fails if they differ by more than benchmarks/families/comparison.py allows.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.families.comparison import (
    Record,
    by_family,
    faults,
    judged,
    mib,
    outside,
    pairs,
    rows,
    summary,
)
from benchmarks.families.table import AROUND, FAMILIES, MIB, PLAIN, SIZES, Family, whole_pages
from benchmarks.harness.processes import ROOT, SIMULATED_ALLOCATORS, Child, ChildError
from benchmarks.harness.records import print_table, report_problems, store
from tools.gpu import gpu_count

RESULTS = ROOT / "benchmarks" / "results"
STORED = RESULTS / "families_simulated.json"
ON_GPU = RESULTS / "families_gpu.json"
WHOLE = "whole"
JOBS_ON_GPU, JOBS_SIMULATED = 14, 2
CARD = 74 << 10
"""MiB of a real card for children; the rest of 80 GB is for undeclared memory."""
OUTSIDE = 1 << 10
"""MiB that a child may take outside its allocator."""
UNLIMITED = 12 << 10
"""MiB that a child without a limit may take."""


@cache
def reserved_on_gpu() -> dict[tuple[str, str], int]:
    """The peaks of the stored runs on an ample card, by family and allocator."""
    found = read(ON_GPU)
    return {(r.family, r.allocator): r.peak_reserved for r in found if r.size == SIZES[0]}


@dataclass(frozen=True)
class Case:
    family: str
    allocator: str
    size: str
    smoke: bool

    @property
    def program(self) -> Family:
        return FAMILIES[self.family.removesuffix(PLAIN)]

    @property
    def limit(self) -> int | None:
        if self.size == WHOLE or self.smoke:
            return None
        if self.size in AROUND:
            reserved = reserved_on_gpu()[self.family, self.allocator] / MIB
            return whole_pages(AROUND[self.size] * reserved, up=self.size == "above")
        return self.program.limit(self.size)

    @property
    def named(self) -> str:
        return " ".join((self.family, self.allocator, self.size))

    @property
    def is_traced(self) -> bool:
        """Whether requests are recorded: they hardly depend on allocator and size."""
        return self.allocator == "native" and self.size in (SIZES[0], WHOLE)

    @property
    def declared(self) -> int:
        return OUTSIDE + (UNLIMITED if self.limit is None else self.limit)

    def record(self, problem: str = "") -> Record:
        return Record(self.family, self.allocator, self.size, self.limit, problem=problem)


class Share:
    """A card's memory: a child starts once its declared share is free. Thread-safe."""

    def __init__(self, size: int) -> None:
        self._size = self._free = size
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, wanted: int) -> Iterator[None]:
        taken = min(wanted, self._size)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= taken)
            self._free -= taken
        try:
            yield
        finally:
            with self._changed:
                self._free += taken
                self._changed.notify_all()


def environment(cache: str, one_device: bool) -> dict[str, str]:
    # Each compiles everything itself, so that it requests the memory for compilation.
    env = {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    env |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    if one_device:
        # A Trainer would use all visible devices.
        env["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return env


def measure(
    case: Case,
    options: argparse.Namespace,
    card: Share,
    deadline: float,
    requests: dict[str, list[int]],
) -> Record | None:
    """Returns None if the budget ran out before the end. Adds the requests of the program to
    `requests`."""
    if missing := case.program.missing():
        return case.record(f"{case.family} needs {', '.join(missing)}, which is not installed")
    words = ["--family", case.family.removesuffix(PLAIN), "--allocator", case.allocator]
    words += [] if case.limit is None else ["--limit", str(case.limit)]
    words += ["--simulated"] * options.simulated + ["--smoke"] * case.smoke
    words += ["--requests"] * (options.requests is not None and case.is_traced)
    words += ["--plain"] * case.family.endswith(PLAIN) + ["--alone"] * (options.jobs == 1)
    with card.hold(case.declared), tempfile.TemporaryDirectory() as folder:
        if time.monotonic() > deadline:
            return None
        env = environment(folder, one_device=not options.simulated and case.program.ranks == 1)
        try:
            with Child("benchmarks.families.child", words, env) as child:
                found = child.read()
            if "requests" in found:
                requests[case.named] = found.pop("requests")
            return Record(**{**vars(case.record()), **found})
        except (ChildError, ValueError, TypeError) as error:
            # The second and third mean that the output is not the child's object.
            late = time.monotonic() >= deadline
            return None if late else case.record(f"{case.family}: {error}")


def names_of(options: argparse.Namespace) -> list[str]:
    """The chosen families; else all that this machine can run, those without cuDNN last."""
    if options.smoke:
        return [name for name, family in FAMILIES.items() if family.smoke]
    plain = [name + PLAIN for name, family in FAMILIES.items() if family.plain]
    if options.only:
        known = {*FAMILIES, *plain}
        if unknown := [name for name in options.only if name not in known]:
            raise ValueError(f"no family {', '.join(unknown)}: expected of {', '.join(FAMILIES)}")
        return list(options.only)
    devices = sys.maxsize if options.simulated else gpu_count()
    return [name for name, family in FAMILIES.items() if family.ranks <= devices] + plain


def cases_of(options: argparse.Namespace) -> list[Case]:
    sizes = [WHOLE] if options.smoke else options.sizes
    names = names_of(options)
    groups = [[n for n in names if n.endswith(PLAIN) == plain] for plain in (False, True)]
    return [
        Case(name, allocator, size, options.smoke)
        for group in groups
        for size in sizes
        for name in group
        for allocator in options.allocators
    ]


def read(file: Path) -> list[Record]:
    return [Record(**record) for record in json.loads(file.read_text())]


def run(options: argparse.Namespace) -> list[Record]:
    """The record of each case. Each replaces an older one of the same case in the output."""
    cases = cases_of(options)
    output: Path | None = options.output
    kept = {r.key: r for r in read(output)} if output is not None and output.exists() else {}
    began = time.monotonic()
    card = Share(sys.maxsize if options.simulated else CARD)
    fresh = []
    requests: dict[str, list[int]] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        deadline = began + options.budget
        futures = [pool.submit(measure, c, options, card, deadline, requests) for c in cases]
        for number, future in enumerate(as_completed(futures), 1):
            record = future.result()
            if record is None:
                continue
            fresh.append(record)
            kept[record.key] = record
            store(in_order(list(kept.values())), output)
            print(
                f"{time.monotonic() - began:5.0f} s {number}/{len(cases)} {line(record)}",
                file=sys.stderr,
                flush=True,
            )
    if options.requests is not None:
        with gzip.open(options.requests, "wt") as file:
            json.dump(requests, file)
    if len(fresh) < len(cases):
        print(f"{len(cases) - len(fresh)} not run: the budget was spent", file=sys.stderr)
    return in_order(fresh)


def in_order(records: Sequence[Record]) -> list[Record]:
    """Sorts records; those without cuDNN come last."""
    families, sizes = list(FAMILIES), [*SIZES, *AROUND, WHOLE]

    def place(record: Record) -> tuple[bool, int, int, int]:
        name = record.family.removesuffix(PLAIN)
        allocator = SIMULATED_ALLOCATORS.index(record.allocator)
        return (
            name != record.family,
            families.index(name),
            sizes.index(record.size),
            allocator,
        )

    return sorted(records, key=place)


def line(record: Record) -> str:
    what = " ".join(record.key)
    if record.problem:
        return f"{what}: problem: {record.problem.splitlines()[-1]}"
    verdict = "fits" if record.fits else "does not fit"
    return f"{what}: {verdict}, {mib(record.peak_reserved)} MiB, {record.seconds:.1f} s"


def show(records: Sequence[Record], title: str) -> None:
    headings = ("family", "allocator", "card, MiB", "fits", "reserved", "allocated", "attention")
    lines = [
        (
            r.family,
            r.allocator,
            "all" if r.limit is None else f"{r.limit:,}",
            "yes" if r.fits else "no",
            mib(r.peak_reserved),
            mib(r.peak_allocated),
            "/".join(r.attention),
        )
        for r in records
        if not r.problem
    ]
    print_table(title, headings, lines)


def compare(gpu: Sequence[Record], simulated: Sequence[Record]) -> int:
    """Shows the differences; returns the exit status."""
    found, problems = pairs(gpu, simulated)
    print_table("peak reserved", *rows(found))
    print_table("by family", *by_family(found))
    problems += faults(judged(found))
    print(f"as it is: {summary(judged(found))}")
    plain = [pair for pair in found if pair not in judged(found)]
    if plain:
        print(f"without cuDNN: {summary(plain)}")
    print(f"outside the allocator: {outside(gpu)}, simulated {outside(simulated)}")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulated", action="store_true", help="on the simulated GPU")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these families")
    parser.add_argument(
        "--allocators", nargs="+", choices=SIMULATED_ALLOCATORS, default=list(SIMULATED_ALLOCATORS)
    )
    parser.add_argument("--sizes", nargs="+", choices=(*SIZES, *AROUND, WHOLE), default=list(SIZES))
    parser.add_argument(
        "--smoke", action="store_true", help="three tiny families, to test that it runs"
    )
    parser.add_argument("--jobs", type=int, help="children at the same time")
    parser.add_argument(
        "--budget",
        type=float,
        default=3600,
        metavar="SECONDS",
        help="then it ends with what it has",
    )
    parser.add_argument("--output", type=Path, help="the records, as JSON; others in it are kept")
    parser.add_argument(
        "--requests",
        type=Path,
        metavar="FILE",
        help="requests and frees in order, as gzipped JSON; only for native and ample",
    )
    parser.add_argument(
        "--compare", type=Path, metavar="FILE", help="with the records of a real GPU; runs nothing"
    )
    options = parser.parse_args(argv)
    options.jobs = options.jobs or (JOBS_SIMULATED if options.simulated else JOBS_ON_GPU)
    if options.compare is not None:
        return compare(read(options.compare), read(options.output or STORED))
    if not options.simulated and gpu_count() == 0:
        parser.error("there is no GPU: add --simulated")
    try:
        records = run(options)
    except ValueError as error:
        parser.error(str(error))
    show(records, "simulated GPU" if options.simulated else "GPU")
    return report_problems(records)


if __name__ == "__main__":
    sys.exit(main())
