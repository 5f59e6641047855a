"""What captures would cost, in bytes: each alone, and all of them in one arrangement of pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from ferro_alloc._tables import table

Pools = Literal["separate", "shared", "exclusive", "exclusive shared"]
"""How captures divide memory among them: a pool for each, one pool for all, and the same in an
exclusive group."""

POOLS: Mapping[Pools, str] = {
    "separate": "separate pools",
    "shared": "one pool",
    "exclusive": "separate pools, exclusive",
    "exclusive shared": "one pool, exclusive",
}
UNSHARED: Mapping[Pools, Pools] = {
    "separate": "separate",
    "shared": "shared",
    "exclusive": "separate",
    "exclusive shared": "shared",
}
"""What is the same where graphs have no pages to share, but plain allocations of the driver."""
_MIB = 1 << 20


@dataclass(frozen=True)
class PlannedCapture:
    """One capture in a pool of its own. Of a graph that exists: its pool, with all of its graphs.

    `reserved_bytes >= results_bytes + state_bytes + scratch_bytes`; the rest fills up pages.
    """

    name: str
    results_bytes: int
    """In blocks of the tensors that the callable returns. Of a graph that exists: of all tensors
    that are in use."""
    state_bytes: int
    """In other blocks that are alive at the end of the capture."""
    scratch_bytes: int
    """Freed by then, and written again by each replay."""
    driver_bytes: int
    """What the device had less free afterwards, beside the reserved bytes: of the graph that the
    driver has instantiated and uploaded. 0 where it fits into what the driver holds, and for a
    graph that exists."""
    reserved_bytes: int
    """Of the pool, in whole pages."""


@dataclass(frozen=True)
class PlannedSet:
    """All captures in one arrangement of pools."""

    pools: Pools
    reserved_bytes: int
    """What `torch.cuda.memory_reserved()` grows by: all the pools in whole pages, and beside them
    what PyTorch keeps for random numbers as long as there is any graph."""
    driver_bytes: int
    """The driver's own, which does not depend on the arrangement. Without any in which the captures
    were held together, the sum of single ones: less, where each came to the place of the last."""
    is_measured: bool
    """Captured that way. False: computed from the single captures, because there was not enough
    memory, or because the graphs exist and are in other pools."""

    @property
    def total_bytes(self) -> int:
        return self.reserved_bytes + self.driver_bytes


@dataclass(frozen=True)
class Plan:
    """What captures would take of a device. `print(plan)` shows it as a table in MiB."""

    captures: tuple[PlannedCapture, ...]
    """In the order in which they were planned."""
    sets: Mapping[Pools, PlannedSet]
    """By the arrangements of pools that were asked for."""
    kept_bytes: int
    """What the callable, PyTorch and libraries have allocated in the dry run and keep, as a
    workspace of cuBLAS for the stream. It is there from now on, and not in `captures`."""

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [
            ("MiB", "results", "state", "scratch", "driver", "reserved", "")
        ]
        rows += [
            (
                capture.name,
                *map(_mib, (capture.results_bytes, capture.state_bytes, capture.scratch_bytes)),
                *map(_mib, (capture.driver_bytes, capture.reserved_bytes)),
                "",
            )
            for capture in self.captures
        ]
        results = _mib(sum(capture.results_bytes for capture in self.captures))
        state = _mib(sum(capture.state_bytes for capture in self.captures))
        for planned in self.sets.values():
            sizes = (_mib(planned.driver_bytes), _mib(planned.reserved_bytes))
            estimated = "" if planned.is_measured else "estimated"
            rows.append((POOLS[planned.pools], results, state, "", *sizes, estimated))
        lines = table(rows, indent="")
        if self.kept_bytes:
            lines.append(f"kept by the program and libraries: {_mib(self.kept_bytes)} MiB")
        return "\n".join(lines)


def reserved_without_gaps(captures: Sequence[PlannedCapture], pools: Pools, page_bytes: int) -> int:
    """Bytes that a set of captures takes at least, in whole pages, from what each takes alone.

    Separate pools add up. In one pool a capture finds the scratch of those before it free, and
    puts its results there too: the most that results so far and a scratch come to. In an exclusive
    group nothing else uses the pages of results, so the largest scratch comes on top of all. Pure.
    """
    if pools == "separate":
        return sum(capture.reserved_bytes for capture in captures)
    live = [capture.results_bytes + capture.state_bytes for capture in captures]
    scratch = [capture.scratch_bytes for capture in captures]
    if pools == "shared":
        together = zip(accumulate(live), scratch, strict=True)
        return _pages(max(before + own for before, own in together), page_bytes)
    results = sum(_pages(size, page_bytes) for size in live)
    return results + _pages(max(scratch), page_bytes)


def _pages(size: int, page_bytes: int) -> int:
    return -(-size // page_bytes) * page_bytes


def _mib(size: int) -> str:
    return f"{size / _MIB:,.1f}"
