"""Compares records of the simulated GPU with those of a real one.

The simulated GPU is right if peak reserved differs by at most `WORST`, and by at most `MEDIAN` in
the median, for programs that fit on both; if no program fits only on the simulated GPU; and if at
most the share `FALSE_ALARMS` of the programs that fit on the GPU does not fit on the simulated one.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.families.table import PLAIN, SIZES

MEDIAN = 0.02
WORST = 0.05
FALSE_ALARMS = 1 / 50

Key = tuple[str, str, str]


@dataclass
class Record:
    """One program under one allocator on one size of card. Bytes, except the limit."""

    family: str
    """The name of a family without cuDNN ends with `_plain`."""
    allocator: str
    size: str
    limit: int | None
    """MiB that the allocator may reserve; None means the whole card."""
    fits: bool = False
    peak_reserved: int = 0
    peak_allocated: int = 0
    outside: int | None = None
    """The memory that the process held outside the allocator at its end; None if unknown."""
    emptied_cache: int = 0
    attention: list[str] = field(default_factory=list)
    """The kernels that were chosen for attention."""
    failure: str = ""
    """The allocator's message when memory ran out, which is a result."""
    seconds: float = 0
    device: str = ""
    problem: str = ""

    @property
    def key(self) -> Key:
        return (self.family, self.allocator, self.size)


@dataclass(frozen=True)
class Pair:
    """The same program on the GPU and on the simulated one."""

    gpu: Record
    simulated: Record

    @property
    def both_fit(self) -> bool:
        return self.gpu.fits and self.simulated.fits

    @property
    def difference(self) -> float:
        return self.simulated.peak_reserved / self.gpu.peak_reserved - 1


def pairs(gpu: Sequence[Record], simulated: Sequence[Record]) -> tuple[list[Pair], list[str]]:
    """The pairs in the order of the GPU's records, and records without a partner or result."""
    known = {record.key: record for record in simulated}
    found, problems = [], []
    for record in gpu:
        here = known.get(record.key)
        where = f"{record.family} under {record.allocator}, {record.size}"
        if record.problem:
            problems.append(f"{where}: {record.problem}")
        elif here is None or here.problem:
            problems.append(f"{where}: there is no result of the simulated GPU")
        elif here.limit != record.limit:
            problems.append(f"{where}: the limits are {record.limit} and {here.limit} MiB")
        else:
            found.append(Pair(record, here))
    left = Counter(record.family for record in simulated)
    left.subtract(record.family for record in gpu if record.key in known)
    problems += [
        f"{name}: {count} runs are not there of the GPU" for name, count in (+left).items()
    ]
    return found, problems


def judged(found: Sequence[Pair]) -> list[Pair]:
    """The pairs with cuDNN, as on a normal card."""
    return [pair for pair in found if not pair.gpu.family.endswith(PLAIN)]


def verdicts(found: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """The pairs that fit only on the simulated GPU, and those that fit only on the real one."""
    wrong = [pair for pair in found if pair.gpu.fits != pair.simulated.fits]
    return [p for p in wrong if p.simulated.fits], [p for p in wrong if p.gpu.fits]


def describe(pair: Pair) -> str:
    return f"{pair.gpu.family} under {pair.gpu.allocator}, {pair.gpu.size}"


def faults(found: Sequence[Pair]) -> list[str]:
    """The errors of the simulated GPU beyond the tolerances."""
    told = []
    by_size = [abs(pair.difference) for pair in found if pair.both_fit]
    if not by_size:
        return ["no program fits on both"]
    if (median := statistics.median(by_size)) > MEDIAN:
        told.append(f"peak reserved differs by {median:.1%} in the median, {MEDIAN:.0%} at most")
    for pair in found:
        if pair.both_fit and abs(pair.difference) > WORST:
            told.append(f"{describe(pair)}: peak reserved differs by {pair.difference:+.1%}")
    here_alone, there_alone = verdicts(found)
    told += [f"{describe(pair)}: fits on the simulated GPU alone" for pair in here_alone]
    if len(there_alone) > FALSE_ALARMS * sum(pair.gpu.fits for pair in found):
        told += [f"{describe(pair)}: fits on the GPU alone" for pair in there_alone]
    return told


def summary(found: Sequence[Pair]) -> str:
    by_size = [abs(pair.difference) for pair in found if pair.both_fit] or [0.0]
    here_alone, there_alone = verdicts(found)
    return (
        f"{len(found)} runs: peak reserved differs by {statistics.median(by_size):.2%} in the "
        f"median and {max(by_size):.2%} at most; {len(here_alone)} fit on the simulated GPU "
        f"alone, {len(there_alone)} on the GPU alone"
    )


def mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f}"


def rows(found: Sequence[Pair]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Headings, and one row for each run; differences for runs that fit on both."""
    headings = ("family", "allocator", "card, MiB", "fits", "simulated", "GPU, MiB", "simulated")
    lines: list[Sequence[str]] = []
    for pair in found:
        there, here = pair.gpu, pair.simulated
        lines.append(
            (
                there.family,
                there.allocator,
                "all" if there.limit is None else f"{there.limit:,}",
                "yes" if there.fits else "no",
                "yes" if here.fits else "no",
                mib(there.peak_reserved),
                mib(here.peak_reserved),
                f"{pair.difference:+.2%}" if pair.both_fit else "-",
                "-" if there.attention == here.attention else "/".join(there.attention),
            )
        )
    return (*headings, "difference", "other attention"), lines


def outside(records: Sequence[Record]) -> str:
    """The memory of processes outside their allocators, in MiB."""
    known = sorted(record.outside for record in records if record.outside is not None)
    return f"{mib(known[0])} to {mib(known[-1])} MiB" if known else "not known"


def by_family(found: Sequence[Pair]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Headings, and one row for each family: for the ample card, MiB reserved on the GPU and the
    difference; for all cards, the number of verdicts that equal the GPU's."""
    families = dict.fromkeys(pair.gpu.family for pair in found)
    allocators = dict.fromkeys(pair.gpu.allocator for pair in found)
    lines: list[Sequence[str]] = []
    for family in families:
        cells = [family]
        mine = [pair for pair in found if pair.gpu.family == family]
        for allocator in allocators:
            pair = next(
                (p for p in mine if (p.gpu.allocator, p.gpu.size) == (allocator, SIZES[0])), None
            )
            cells.append(mib(pair.gpu.peak_reserved) if pair else "-")
            cells.append(f"{pair.difference:+.2%}" if pair and pair.both_fit else "-")
        right = sum(pair.gpu.fits == pair.simulated.fits for pair in mine)
        lines.append([*cells, f"{right} of {len(mine)}"])
    headings = [word for name in allocators for word in (f"{name}, MiB", "simulated")]
    return ("family", *headings, "right verdicts"), lines
