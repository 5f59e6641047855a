"""A trace as the steps of a replay, in order.

A block that waits for another stream is freed when the trace shows it as free, not when the program
freed it: the replay's streams have no work to wait for.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

from ferro_alloc.snapshots._ranges import Range, joined
from ferro_alloc.snapshots._trace import Allocator, Trace, rounded

ALLOCATE, FREE, EMPTY, BEGIN = range(4)
"""Peaks count from BEGIN on; earlier steps rebuild the memory at the start of the trace."""

_MIB = 1 << 20
# PyTorch's allocators serve requests of up to 1 MiB from segments of 2 MiB, and split a larger
# block only if more than 1 MiB is left.
_SMALL, _SMALL_SEGMENT = _MIB, 2 * _MIB
# Number of blocks behind one that are examined to find its end.
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
    """The event of a step; -1 before the first."""
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

    If `target` recorded the trace, the layout of the first moment is rebuilt. For another allocator
    that layout is unknown, and its blocks are requested in the order of their addresses.
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
        # If an address is handed out again without a free, both happen at once.
        if ends[event] >= 0:
            yield event, FREE, ends[event]
        if starts[event] >= 0:
            yield event, ALLOCATE, starts[event]
        elif event in emptied:
            yield event, EMPTY, 0


@dataclass
class _Piece:
    """A piece of a segment, in bytes: a block, a gap, or a hole, which has no memory.

    A gap of at most 1 MiB between large blocks cannot be requested: it is the `narrow_gap` of the
    block in front of it. Next to a hole it belongs to the hole, of which only whole pages go.
    """

    size: int
    block: int = -1
    is_hole: bool = False
    narrow_gap: int = 0


class _Layout:
    """Rebuilds the memory of PyTorch's own allocators before the first event, at the same places.

    Each segment is filled from end to end with its blocks and with stand-ins for its gaps, one
    segment after the other, so that best fit has only one place for each. Then the stand-ins are
    freed.
    """

    def __init__(self, trace: Trace, steps: Plan, place: dict[int, int], first: list[int]) -> None:
        self._trace, self._steps, self._place = trace, steps, place
        self._first = first
        self._by_address = sorted(range(len(trace.blocks)), key=trace.blocks.address.__getitem__)
        self._addresses = [trace.blocks.address[b] for b in first]
        self._is_native = trace.allocator == "native"
        self._gaps: list[int] = []
        self._holes: list[int] = []
        self._tight: list[tuple[int, _Piece, int]] = []
        """Stand-ins for a block and its narrow gap; the block, and its pool."""

    def rebuild(self) -> None:
        if self._is_native:
            for r in (r for r in self._trace.ranges if r.begin < 0):
                if r.size != _SMALL_SEGMENT:
                    self._free(self._stand_in(r.size, r.stream, self._pool_of(r)))
                self._fill([r], r.address, self._pool_of(r), r.size == _SMALL_SEGMENT)
        else:
            self._fill_lines()
        # No other free memory fits a block of this size. The order is from the end, so that no gap
        # is in front of a block.
        for slot, piece, pool in reversed(self._tight):
            self._free(slot)
            self._allocate(piece, pool)
        for slot in self._holes:
            self._free(slot)
        if self._holes:
            self._steps.add(EMPTY, -1)
        for slot in self._gaps:
            self._free(slot)

    def _fill_lines(self) -> None:
        """Expandable segments: one line of addresses for each stream, pool and class of sizes."""
        lines: dict[tuple[int, int, bool], list[Range]] = {}
        for r in self._trace.ranges:
            lines.setdefault((r.stream, self._pool_of(r), self._is_small(r)), []).append(r)
        for (_, pool, small), members in lines.items():
            held = joined([r for r in members if r.begin < 0])
            if held:
                # The addresses in front of it, which got memory later, also existed.
                self._fill(held, min(r.address for r in members), pool, small)

    def _is_small(self, r: Range) -> bool:
        near = [s for s in self._trace.segments if s.stream == r.stream]
        if near:
            return min(near, key=lambda s: abs(s.address - r.address)).is_small
        return all(rounded(self._trace.blocks.size[b]) <= _SMALL for b in self._blocks_in(r))

    def _pool_of(self, r: Range) -> int:
        # Another segment may have taken the place of a released one.
        if r.end < max(self._trace.events, 1):
            return 0
        for segment in self._trace.segments:
            if segment.address <= r.address < segment.address + segment.size:
                return self._trace.pool_handles.index(segment.pool)
        return 0

    def _blocks_in(self, r: Range) -> list[int]:
        low = bisect_left(self._addresses, r.address)
        return self._first[low : bisect_left(self._addresses, r.address + r.size)]

    def _fill(self, ranges: list[Range], begin: int, pool: int, small: bool) -> None:
        """Fills from address `begin` on, one piece after the other; `ranges` are in order."""
        stream = ranges[0].stream
        for piece in self._pieces(ranges, begin, small):
            if piece.block < 0:
                slots = self._holes if piece.is_hole else self._gaps
                slots += self._stand_ins(piece.size, stream, pool, small)
            elif piece.narrow_gap:
                slot = self._stand_in(piece.size + piece.narrow_gap, stream, pool)
                self._tight.append((slot, piece, pool))
            else:
                self._allocate(piece, pool)

    def _pieces(self, ranges: list[Range], begin: int, small: bool) -> list[_Piece]:
        blocks, pieces, at = self._trace.blocks, list[_Piece](), begin
        for r in ranges:
            if r.address > at:
                hole = _Piece(r.address - at, is_hole=True)
                if pieces:
                    hole.size += pieces[-1].narrow_gap
                    pieces[-1].narrow_gap = 0
                pieces.append(hole)
            at, inside = r.address, self._blocks_in(r)
            for b, following in zip_longest(inside, inside[1:]):
                limit = r.address + r.size if following is None else blocks.address[following]
                _add_gap(pieces, blocks.address[b] - at, small)
                pieces.append(_Piece(self._extent(b, limit, small), b))
                at = blocks.address[b] + pieces[-1].size
            _add_gap(pieces, r.address + r.size - at, small)
            at = r.address + r.size
        return pieces

    def _extent(self, b: int, limit: int, small: bool) -> int:
        """The bytes of its segment that a block takes, including a rest too small to split off."""
        blocks = self._trace.blocks
        if b in self._trace.extents:
            return self._trace.extents[b]
        start, size = blocks.address[b], rounded(blocks.size[b])
        if small or not self._is_native:
            return size
        if limit - start - size <= _SMALL:
            return limit - start
        # A block that was placed behind it during its life shows where it ended.
        at = bisect_right(self._by_address, start + size, key=blocks.address.__getitem__)
        for other in self._by_address[at : at + _NEIGHBOURS]:
            distance = blocks.address[other] - start
            if distance - size > _SMALL:
                break
            if blocks.born[other] < blocks.died[b]:
                return distance
        return size

    def _stand_ins(self, size: int, stream: int, pool: int, small: bool) -> list[int]:
        found = []
        while small and size > _SMALL:
            found.append(self._stand_in(_SMALL, stream, pool))
            size -= _SMALL
        return [*found, self._stand_in(size, stream, pool)]

    def _stand_in(self, size: int, stream: int, pool: int) -> int:
        slot = self._steps.slots
        self._steps.slots += 1
        self._steps.add(ALLOCATE, -1, slot, size, self._place[stream], pool)
        return slot

    def _allocate(self, piece: _Piece, pool: int) -> None:
        stream = self._place[self._trace.blocks.stream[piece.block]]
        self._steps.add(ALLOCATE, -1, piece.block, piece.size, stream, pool)

    def _free(self, slot: int) -> None:
        self._steps.add(FREE, -1, slot)


def _add_gap(pieces: list[_Piece], size: int, small: bool) -> None:
    if size <= 0:
        return
    if small or size > _SMALL or not pieces or not (pieces[-1].is_hole or pieces[-1].block >= 0):
        pieces.append(_Piece(size))
    elif pieces[-1].is_hole:
        pieces[-1].size += size
    else:
        pieces[-1].narrow_gap = size
