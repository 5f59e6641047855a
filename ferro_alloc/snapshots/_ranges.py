"""The memory that an allocator held during a trace: ranges with a begin and an end."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Range:
    """Addresses that had memory from event `begin` until event `end`."""

    address: int
    size: int
    stream: int
    begin: int
    end: int


@dataclass
class Mapped:
    """Disjoint ranges that now have memory, by address."""

    addresses: list[int] = field(default_factory=list)
    _ranges: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # size, stream, begin

    def add(self, address: int, size: int, stream: int, begin: int) -> None:
        if address not in self._ranges:
            insort(self.addresses, address)
        self._ranges[address] = (size, stream, begin)

    def cut(self, address: int, size: int) -> Iterator[tuple[int, int, int, int]]:
        """Removes addresses; yields address, size, stream and begin of each part that had
        memory."""
        last = bisect_left(self.addresses, address + size)
        first = max(bisect_right(self.addresses, address) - 1, 0)
        for at in self.addresses[first:last]:
            length, stream, begin = self._ranges[at]
            low, high = max(at, address), min(at + length, address + size)
            if low >= high:
                continue
            del self.addresses[bisect_left(self.addresses, at)]
            del self._ranges[at]
            if at < low:
                self.add(at, low - at, stream, begin)
            if high < at + length:
                self.add(high, at + length - high, stream, begin)
            yield low, high - low, stream, begin

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        for address in self.addresses:
            size, stream, begin = self._ranges[address]
            yield address, size, stream, begin


@dataclass(frozen=True)
class Change:
    """An event that added or removed memory."""

    event: int
    comes: bool
    address: int
    size: int
    stream: int


def at_the_start(changes: list[Change], at_the_end: Iterable[tuple[int, int, int]]) -> Mapped:
    """The memory held before the first event, found by undoing the changes from the end."""
    mapped = Mapped()
    for address, size, stream in at_the_end:
        mapped.add(address, size, stream, -1)
    for change in reversed(changes):
        if change.comes:
            for _ in mapped.cut(change.address, change.size):
                pass
        else:
            mapped.add(change.address, change.size, change.stream, -1)
    return mapped


def history(mapped: Mapped, changes: list[Change], end: int) -> list[Range]:
    """Every range with its life; `mapped` is the memory held before the first change."""
    found = []
    for change in changes:
        if change.comes:
            mapped.add(change.address, change.size, change.stream, change.event)
        else:
            for address, size, stream, begin in mapped.cut(change.address, change.size):
                found.append(Range(address, size, stream, begin, change.event))
    found += [Range(a, size, stream, begin, end) for a, size, stream, begin in mapped]
    return sorted(found, key=lambda r: (r.address, r.begin))


def joined(ranges: list[Range]) -> list[Range]:
    """Merges adjacent ranges of one moment, without their ends; `ranges` are in order."""
    found: list[Range] = []
    for r in ranges:
        if found and found[-1].address + found[-1].size == r.address:
            before = found.pop()
            r = Range(before.address, before.size + r.size, r.stream, r.begin, -1)
        found.append(r)
    return found


def reserved_after(ranges: list[Range], events: int) -> array[int]:
    """Bytes held after each event."""
    deltas = array("q", bytes(8 * (events + 1)))
    held = 0
    for r in ranges:
        if r.begin < 0:
            held += r.size
        else:
            deltas[r.begin] += r.size
        if r.end < events:
            deltas[r.end] -= r.size
    for event in range(events):
        held += deltas[event]
        deltas[event] = held
    deltas.pop()
    return deltas
