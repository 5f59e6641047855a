"""Describes in lines of text what the simulated GPU could not do for a program."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from ferro_alloc.sim import _control
from ferro_alloc.sim._symbols import short_name

MOST_NAMED = 8
"""Maximum number of places, kernels and functions in a line; the rest is counted."""
DRAWN = (
    "choices were drawn at random, each class equally likely, or numbers that a card draws "
    "differently"
)
"""How a line about drawn choices begins."""
SHOWN = "numbers that seem to decide nothing were not computed, but assumed as zeros"
DECIDING = "values that may decide what the program does were not computed, but assumed"
SHOWN_DRAWN = "numbers that seem to decide nothing follow from choices or numbers drawn at random"
KERNELS = "kernels that the simulated GPU did not run"
CALLS = "calls that are not simulated"
ABOUT_CALLS = (KERNELS, CALLS)
"""How lines begin that are about no values."""
NOTHING_MISSING = f"{CALLS}: none"
OTHERWISE = "do it on the CPU"
ADVICE = {
    "cuDNN": "set torch.backends.cudnn.enabled = False around it",
    "cuBLAS": "leave its settings as they are",
    "NVRTC": "leave the function out",
}


def place_of(one: _control.UncomputedRead | _control.LibraryFailure) -> str:
    """Its line of the program, or else its operator."""
    return one.place or f"outside of Python, in {one.operator}"


@dataclass
class Missed:
    """What the simulated GPU could not do, in one process or in several."""

    reads: dict[str, dict[str, int]] = field(default_factory=dict)
    """Places that read values which nothing computed, with the number of reads, by the beginning of
    their line."""
    kernels: list[str] = field(default_factory=list)
    """Kernels from outside of operators, each with the line that first launched it if known."""
    failures: list[tuple[str, str]] = field(default_factory=list)
    """Libraries, each with an operator that failed in it."""
    functions: list[str] = field(default_factory=list)

    def add(self, other: Missed) -> None:
        """Adds what another process missed."""
        for line, places in other.reads.items():
            for place, count in places.items():
                self.add_read(line, place, count)
        self.kernels = list(dict.fromkeys(self.kernels + other.kernels))
        failures = [(library, operator) for library, operator in self.failures + other.failures]
        self.failures = list(dict.fromkeys(failures))
        self.functions = list(dict.fromkeys(self.functions + other.functions))

    def add_read(self, line: str, place: str, count: int) -> None:
        places = self.reads.setdefault(line, {})
        places[place] = places.get(place, 0) + count

    def lines(self, leave_out: Collection[str] = ()) -> list[str]:
        """The lines of `not_simulated()`. Each place is in one, and those to leave out in none."""
        lines = []
        named = set(leave_out)
        for line in (DECIDING, DRAWN, SHOWN_DRAWN, SHOWN):
            places = {
                place: count
                for place, count in self.reads.get(line, {}).items()
                if place not in named
            }
            named |= set(places)
            if places:
                lines.append(f"{line}: {enumerate_places(places)}")
        if self.kernels:
            lines.append(f"{KERNELS}: {enumerate_names(self.kernels)}")
        missing = [
            f"{library} in {enumerate_names([operator for _, operator in group])}"
            f" ({ADVICE.get(library, OTHERWISE)})"
            for library, group in groupby(
                sorted(self.failures, key=lambda failure: failure[0]), lambda failure: failure[0]
            )
        ]
        named = {library.lower() for library, _ in self.failures}
        missing += [
            function
            for function in self.functions
            # Those that made the library fail.
            if not any(function.startswith(name) for name in named)
        ]
        lines.append(f"{CALLS}: {enumerate_names(missing)}" if missing else NOTHING_MISSING)
        return lines


def missed() -> Missed:
    """What the active machine could not do for this process so far."""
    places = _control.kernel_places()
    kernels = (
        f"{short_name(name)} ({places[name]})" if name in places else short_name(name)
        for name in _control.kernels()
    )
    found = Missed(
        # Kernels of one template have the same short name.
        kernels=list(dict.fromkeys(kernels)),
        failures=list(
            dict.fromkeys((each.library, each.operator) for each in _control.library_failures())
        ),
        functions=list(_control.unsupported()),
    )
    for read in _control.uncomputed_reads():
        place = place_of(read)
        found.add_read(_line_of(read), place, read.count)
    return found


def _line_of(read: _control.UncomputedRead) -> str:
    """How the line begins that names this read."""
    if read.decides:
        return DRAWN if read.learned == "drawn" else DECIDING
    return SHOWN_DRAWN if read.drawn else SHOWN


def not_simulated() -> list[str]:
    """Returns these lines; the last lists libraries and functions that failed, and what to do.

    Earlier lines, if any, list places that read values which nothing computed or which follow from
    drawn choices, each in one line, and kernels that were launched outside of PyTorch's operators.
    """
    return missed().lines()


def enumerate_names(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def enumerate_places(counts: Mapping[str, int]) -> str:
    return enumerate_names([f"{place} ({times(count)})" for place, count in counts.items()])


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
