"""A device's memory at one moment of a trace: held, free, and the blocks that strand free
memory."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass

from ferro_alloc.snapshots._trace import Trace, rounded

_MIB = 1 << 20


@dataclass(frozen=True)
class Place:
    """Memory of one stream and class of segments, in bytes.

    `reserved == active + stranded + cached`.
    """

    stream: int
    kind: str
    reserved: int
    active: int
    stranded: int
    """Free, in units with a live byte. A unit is memory that goes back to the driver as a whole: a
    segment of the native allocator, a page of the others."""
    cached: int
    """Free, in units without a live byte."""


@dataclass(frozen=True)
class Pin:
    """A line of code whose live blocks strand free bytes; a unit's free bytes are attributed to its
    blocks in proportion to their sizes."""

    line: str
    blocks: int
    live_bytes: int
    stranded_bytes: int


@dataclass(frozen=True)
class State:
    event: int
    places: list[Place]
    pins: list[Pin]

    @property
    def reserved(self) -> int:
        return sum(place.reserved for place in self.places)

    @property
    def active(self) -> int:
        return sum(place.active for place in self.places)

    @property
    def stranded(self) -> int:
        return sum(place.stranded for place in self.places)

    @property
    def cached(self) -> int:
        return sum(place.cached for place in self.places)


def unit_of(trace: Trace, size: int, kind: str) -> int:
    """Bytes that go back to the driver as a whole, in a range of this size."""
    if trace.allocator == "native":
        return size
    return 20 * _MIB if trace.allocator == "expandable" and kind == "large" else 2 * _MIB


def kind_of_range(trace: Trace, address: int, size: int, stream: int) -> str:
    if trace.allocator == "ferro_alloc":
        return "pages"
    if trace.allocator == "native":
        return "small" if size == 2 * _MIB else "large"
    near = [s for s in trace.segments if s.stream == stream]
    if not near:
        return "large" if size % (20 * _MIB) == 0 else "small"
    return "small" if min(near, key=lambda s: abs(s.address - address)).is_small else "large"


def state_at(trace: Trace, event: int) -> State:
    """Returns the state after an event. Takes one pass over the blocks, and a sort of the live
    ones."""
    blocks = trace.blocks
    live = [
        b
        for b, (born, died) in enumerate(zip(blocks.born, blocks.died, strict=True))
        if born <= event < died
    ]
    live.sort(key=blocks.address.__getitem__)
    addresses = [blocks.address[b] for b in live]
    sums: defaultdict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    pinned: defaultdict[int, float] = defaultdict(float)
    for r in trace.ranges:
        if not r.begin <= event < r.end:
            continue
        kind = kind_of_range(trace, r.address, r.size, r.stream)
        unit = unit_of(trace, r.size, kind)
        # A block that begins before a range may reach into it, if pages were mapped one by one.
        low = max(bisect_left(addresses, r.address) - 1, 0)
        inside = live[low : bisect_left(addresses, r.address + r.size)]
        shares: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        active = 0
        for b in inside:
            begin = max(blocks.address[b], r.address)
            end = min(blocks.address[b] + rounded(blocks.size[b]), r.address + r.size)
            if begin >= end:
                continue
            active += end - begin
            first, last = (begin - r.address) // unit, (end - 1 - r.address) // unit
            # Units between the first and the last are full.
            for number in {first, last}:
                start = r.address + number * unit
                part = min(end, start + unit) - max(begin, start)
                shares[number].append((b, part))
        stranded = 0
        for number, parts in shares.items():
            length = min(unit, r.size - number * unit)
            used = sum(part for _, part in parts)
            free = length - used
            if free <= 0:
                continue
            stranded += free
            for b, part in parts:
                pinned[b] += free * part / used
        entry = sums[r.stream, kind]
        entry[0] += r.size
        entry[1] += active
        entry[2] += stranded
        entry[3] += r.size - active - stranded
    places = [Place(stream, kind, *entry) for (stream, kind), entry in sums.items()]
    places.sort(key=lambda place: -place.stranded)
    return State(event, places, _pins(trace, pinned))


def _pins(trace: Trace, pinned: dict[int, float]) -> list[Pin]:
    lines: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0, 0])
    for b, share in pinned.items():
        entry = lines[trace.stacks.lines[trace.blocks.stack[b]]]
        entry[0] += 1
        entry[1] += rounded(trace.blocks.size[b])
        entry[2] += share
    found = [Pin(line, int(n), int(size), int(free)) for line, (n, size, free) in lines.items()]
    return sorted(found, key=lambda pin: -pin.stranded_bytes)
