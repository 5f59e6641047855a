"""Describes in lines of text what the simulated GPU could not do for a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby

from ferro_alloc.sim import _control

MOST_NAMED = 8
"""Maximum number of places, kernels and functions in a line; the rest is counted."""
DRAWN = "choices were drawn at random, each class equally likely"
"""How a line about drawn choices begins."""
OTHERWISE = "do it on the CPU"
ADVICE = {
    "cuDNN": "set torch.backends.cudnn.enabled = False around it",
    "cuBLAS": "leave its settings as they are",
    "NVRTC": "leave the function out",
}


@dataclass
class Missed:
    """What the simulated GPU could not do, in one process or in several."""

    reads: dict[str, int] = field(default_factory=dict)
    """Places that read values which nothing computed, with the number of reads."""
    drawn: dict[str, int] = field(default_factory=dict)
    """The same for values that follow from drawn choices."""
    kernels: list[str] = field(default_factory=list)
    """Kernels from outside of operators, each with the line that first launched it if known."""
    failures: list[tuple[str, str]] = field(default_factory=list)
    """Libraries, each with an operator that failed in it."""
    functions: list[str] = field(default_factory=list)

    def add(self, other: Missed) -> None:
        """Adds what another process missed."""
        for own, others in ((self.reads, other.reads), (self.drawn, other.drawn)):
            for place, count in others.items():
                own[place] = own.get(place, 0) + count
        self.kernels = list(dict.fromkeys(self.kernels + other.kernels))
        failures = [(library, operator) for library, operator in self.failures + other.failures]
        self.failures = list(dict.fromkeys(failures))
        self.functions = list(dict.fromkeys(self.functions + other.functions))

    def lines(self) -> list[str]:
        """The lines of `not_simulated()`."""
        lines = []
        if self.reads:
            lines.append(
                "values taken that were not computed, zeros or valid positions: "
                + enumerate_places(self.reads)
            )
        if self.drawn:
            lines.append(f"{DRAWN}: {enumerate_places(self.drawn)}")
        if self.kernels:
            lines.append(f"kernels that did nothing: {enumerate_names(self.kernels)}")
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
            # cuFFT and cuSOLVER fail because NVIDIA's libcudart is linked into them.
            if not ("libcudart in lib" in function and any(name in function for name in named))
        ]
        lines.append(f"not simulated: {enumerate_names(missing) or 'nothing was missed'}")
        return lines


def missed() -> Missed:
    """What the active machine could not do for this process so far."""
    places = _control.kernel_places()
    found = Missed(
        kernels=[
            f"{name} ({places[name]})" if name in places else name for name in _control.kernels()
        ],
        failures=[(each.library, each.operator) for each in _control.library_failures()],
        functions=list(_control.unsupported()),
    )
    for read in _control.uncomputed_reads():
        place = read.place or f"outside of Python, in {read.operator}"
        counts = found.drawn if read.learned == "drawn" else found.reads
        counts[place] = counts.get(place, 0) + read.count
    return found


def not_simulated() -> list[str]:
    """Returns these lines; the last lists libraries and functions that failed, and what to do.

    Earlier lines, if any, list places that read values which nothing computed or which follow from
    drawn choices, and kernels that were launched outside of PyTorch's operators and did nothing.
    """
    return missed().lines()


def enumerate_names(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def enumerate_places(counts: Mapping[str, int]) -> str:
    return enumerate_names([f"{place} ({times(count)})" for place, count in counts.items()])


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
