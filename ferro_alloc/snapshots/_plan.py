"""A trace as steps that an allocator is asked to take: what a replay does, in order.

Blocks that wait for another stream are freed when the trace says that they were free, not when that
was asked for: the replay's streams have no work that they could wait for.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from ferro_alloc.snapshots._ranges import Range
from ferro_alloc.snapshots._trace import Allocator, Trace, rounded

ALLOCATE, FREE, EMPTY, BEGIN = range(4)
"""BEGIN: from here on peaks count; what comes before it sets up what the trace began with."""

_MIB = 1 << 20
# Of PyTorch's allocators: requests of up to 1 MiB are served from segments of 2 MiB, and a larger
# block is split only where more than 1 MiB is left.
_SMALL, _SMALL_SEGMENT = _MIB, 2 * _MIB
# As many blocks are looked at behind one, to find where it ended.
_NEIGHBOURS = 64


@dataclass
class Plan:
    """Columns of steps. A slot holds one block at a time."""

    kind: array[int] = field(default_factory=lambda: array("b"))
    slot: array[int] = field(default_factory=lambda: array("i"))
    size: array[int] = field(default_factory=lambda: array("q"))
    stream: array[int] = field(default_factory=lambda: array("h"))
    pool: array[int] = field(default_factory=lambda: array("h"))
    event: array[int] = field(default_factory=lambda: array("i"))
    """The event that a step stands for; -1 before the first."""
    streams: list[int] = field(default_factory=lambda: [0])
    slots: int = 0
    pools: int = 1

    def add(
        self, kind: int, event: int, slot: int = 0, size: int = 0, stream: int = 0, pool: int = 0
    ) -> None:
        self.kind.append(kind)
        self.slot.append(slot)
        self.size.append(size)
        self.stream.append(stream)
        self.pool.append(pool)
        self.event.append(event)


def plan(trace: Trace, target: Allocator) -> Plan:
    """The steps that take `target` through a trace.

    Where `target` recorded it, the layout of the first moment is rebuilt as it was. For another
    allocator that is unknown, and its blocks are asked for in the order of their addresses.
    """
    steps = Plan(slots=len(trace.blocks), pools=len(trace.pool_handles))
    blocks = trace.blocks
    streams = sorted({*blocks.stream, *(r.stream for r in trace.ranges)} - {0})
    steps.streams += streams
    place = {stream: number for number, stream in enumerate(steps.streams)}
    first = sorted(
        (b for b, born in enumerate(blocks.born) if born < 0), key=blocks.address.__getitem__
    )
    if trace.allocator == target and target != "ferro_alloc":
        _Layout(trace, steps, place, first).rebuild()
    else:
        for b in first:
            pool = trace.pools[b]
            steps.add(ALLOCATE, -1, b, blocks.size[b], place[blocks.stream[b]], pool)
    steps.add(BEGIN, -1)
    for event, kind, b in _in_order(trace):
        if kind == ALLOCATE:
            pool = trace.pools[b]
            steps.add(ALLOCATE, event, b, blocks.size[b], place[blocks.stream[b]], pool)
        else:
            steps.add(kind, event, b)
    return steps


def _in_order(trace: Trace) -> Iterator[tuple[int, int, int]]:
    """Event, kind and block."""
    blocks = trace.blocks
    starts = array("i", b"\xff" * (4 * trace.events))
    ends = array("i", b"\xff" * (4 * trace.events))
    for b, (born, died) in enumerate(zip(blocks.born, blocks.died, strict=True)):
        if born >= 0:
            starts[born] = b
        if 0 <= died < trace.events:
            ends[died] = b
    emptied = set(trace.emptied)
    for event in range(trace.events):
        # Where an address is handed out again without a free, both happen at once.
        if ends[event] >= 0:
            yield event, FREE, ends[event]
        if starts[event] >= 0:
            yield event, ALLOCATE, starts[event]
        elif event in emptied:
            yield event, EMPTY, 0


class _Layout:
    """Rebuilds what PyTorch's own allocators held before the first event, at the same places.

    Each segment is filled from end to end with its blocks and with stand-ins for its gaps, one
    segment after the other, so that best fit has one place for each. Then the stand-ins go.
    """

    def __init__(self, trace: Trace, steps: Plan, place: dict[int, int], first: list[int]) -> None:
        self._trace, self._steps, self._place = trace, steps, place
        self._first = first
        self._by_address = sorted(range(len(trace.blocks)), key=trace.blocks.address.__getitem__)
        self._addresses = [trace.blocks.address[b] for b in first]
        self._gaps: list[int] = []
        self._holes: list[int] = []

    def rebuild(self) -> None:
        ranges = [r for r in self._trace.ranges if r.begin < 0]
        if self._trace.allocator == "native":
            for r in ranges:
                if r.size != _SMALL_SEGMENT:
                    self._free(self._stand_in(r.size, r, self._pool_of(r)))
                self._fill(r, r.size == _SMALL_SEGMENT)
        else:
            self._fill_lines(ranges)
        for slot in self._holes:
            self._free(slot)
        if self._holes:
            self._steps.add(EMPTY, -1)
        for slot in self._gaps:
            self._free(slot)

    def _fill_lines(self, ranges: list[Range]) -> None:
        """Expandable segments: one line of addresses for each stream, pool and class of sizes."""
        lines: dict[tuple[int, int, bool], list[Range]] = {}
        for r in ranges:
            lines.setdefault((r.stream, self._pool_of(r), self._is_small(r)), []).append(r)
        for (_, pool, small), members in lines.items():
            end = members[0].address
            for r in members:
                if r.address > end:
                    hole = Range(end, r.address - end, r.stream, -1, 0)
                    self._holes += self._stand_ins(hole.size, hole, pool, small)
                self._fill(r, small)
                end = r.address + r.size

    def _is_small(self, r: Range) -> bool:
        near = [s for s in self._trace.segments if s.stream == r.stream]
        if near:
            return min(near, key=lambda s: abs(s.address - r.address)).is_small
        return all(rounded(self._trace.blocks.size[b]) <= _SMALL for b in self._blocks_in(r))

    def _pool_of(self, r: Range) -> int:
        for segment in self._trace.segments:
            if segment.address <= r.address < segment.address + segment.size:
                return self._trace.pool_handles.index(segment.pool)
        return 0

    def _blocks_in(self, r: Range) -> list[int]:
        low = bisect_left(self._addresses, r.address)
        return self._first[low : bisect_left(self._addresses, r.address + r.size)]

    def _fill(self, r: Range, small: bool) -> None:
        blocks, pool = self._trace.blocks, self._pool_of(r)
        least = 512 if small else _SMALL + 1
        inside = self._blocks_in(r)
        at = r.address
        for index, b in enumerate(inside):
            start = blocks.address[b]
            if start > at:
                self._gaps += self._stand_ins(start - at, r, pool, small)
            following = inside[index + 1 : index + 2]
            limit = blocks.address[following[0]] if following else r.address + r.size
            extent = self._extent(b, limit, least)
            self._steps.add(ALLOCATE, -1, b, extent, self._place[r.stream], pool)
            at = start + extent
        if at < r.address + r.size:
            self._gaps += self._stand_ins(r.address + r.size - at, r, pool, small)

    def _extent(self, b: int, limit: int, least: int) -> int:
        """What a block takes of its segment: what was too little to split off belongs to it."""
        blocks = self._trace.blocks
        if b in self._trace.extents:
            return self._trace.extents[b]
        start, size = blocks.address[b], rounded(blocks.size[b])
        if limit - start - size < least:
            return limit - start
        # A block that was put behind it while it lived shows where its own place ended.
        at = bisect_right(self._by_address, start + size, key=blocks.address.__getitem__)
        for other in self._by_address[at : at + _NEIGHBOURS]:
            distance = blocks.address[other] - start
            if distance - size >= least:
                break
            if blocks.born[other] < blocks.died[b]:
                return distance
        return size

    def _stand_ins(self, size: int, r: Range, pool: int, small: bool) -> list[int]:
        found = []
        while small and size > _SMALL:
            found.append(self._stand_in(_SMALL, r, pool))
            size -= _SMALL
        return [*found, self._stand_in(size, r, pool)]

    def _stand_in(self, size: int, r: Range, pool: int) -> int:
        slot = self._steps.slots
        self._steps.slots += 1
        self._steps.add(ALLOCATE, -1, slot, size, self._place[r.stream], pool)
        return slot

    def _free(self, slot: int) -> None:
        self._steps.add(FREE, -1, slot)
