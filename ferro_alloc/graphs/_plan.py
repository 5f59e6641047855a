"""The memory that captures would take: each alone, and all in one arrangement of pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from ferro_alloc._tables import table

Pools = Literal["separate", "shared", "exclusive", "exclusive shared"]
"""How captures share memory: a pool for each, one pool for all, and both in an exclusive group."""

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
"""Equivalent arrangements if graphs have plain allocations of the driver instead of pages."""
_MIB = 1 << 20


@dataclass(frozen=True)
class PlannedCapture:
    """One capture in a separate pool. For an existing graph: its pool, with all graphs in it.

    `reserved_bytes >= results_bytes + state_bytes + scratch_bytes`; the rest fills up pages.
    """

    name: str
    results_bytes: int
    """In blocks of the tensors that the callable returns. For an existing graph: of all tensors in
    use."""
    state_bytes: int
    """In other blocks that are live at the end of the capture."""
    scratch_bytes: int
    """Freed by then, and written again by each replay."""
    driver_bytes: int
    """The decrease of the device's free memory, besides the reserved bytes: memory of the graph
    that the driver has instantiated and uploaded. 0 if it fits into memory that the driver holds,
    and for an existing graph."""
    reserved_bytes: int
    """Reserved by the pool, in whole pages."""


@dataclass(frozen=True)
class PlannedSet:
    """All captures in one arrangement of pools."""

    pools: Pools
    reserved_bytes: int
    """The growth of `torch.cuda.memory_reserved()`: all pools in whole pages, and the memory that
    PyTorch keeps for random numbers as long as any graph exists."""
    driver_bytes: int
    """The driver's own memory, which does not depend on the arrangement. If no arrangement held the
    captures together, this is the sum of single captures, which is too small if each reused the
    memory of the previous one."""
    is_measured: bool
    """Whether the captures were made in this arrangement. False: computed from the single captures,
    because memory was short, or because the graphs exist and are in other pools."""

    @property
    def total_bytes(self) -> int:
        return self.reserved_bytes + self.driver_bytes


@dataclass(frozen=True)
class Plan:
    """The memory that captures would take of a device. `print(plan)` shows a table in MiB."""

    captures: tuple[PlannedCapture, ...]
    """In the order in which they were planned."""
    sets: Mapping[Pools, PlannedSet]
    """The requested arrangements of pools."""
    kept_bytes: int
    """Bytes that the callable, PyTorch and libraries allocated in the dry run and keep, such as a
    workspace of cuBLAS for the stream. They stay allocated, and `captures` excludes them."""

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
    """Returns the minimum bytes of a set of captures, in whole pages, from those of each alone.

    Separate pools add up. In one pool a capture reuses the free scratch of earlier captures, for
    its results too: the total is the maximum of results so far plus one scratch. In an exclusive
    group the pages of results are private, so the largest scratch is added to all results. Pure.
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
