"""A snapshot of `torch.cuda.memory._snapshot()` as columns: blocks and ranges with their lives."""

from __future__ import annotations

import gc
import pickle
import re
from array import array
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ferro_alloc._errors import FerroError
from ferro_alloc.snapshots._ranges import Change, Range, at_the_start, history, reserved_after
from ferro_alloc.snapshots._stacks import Stacks

Snapshot = Mapping[str, Any]
Allocator = Literal["native", "expandable", "ferro_alloc"]

_MIB = 1 << 20
ROUNDING = 512
"""Block sizes are multiples of it, under each of the allocators."""
_COMES = {"segment_alloc": True, "segment_map": True, "segment_free": False, "segment_unmap": False}
_OUR_NOTE = "ferro_alloc: "


@dataclass
class Blocks:
    """A column for each fact; a block's number is its index. Sizes are in bytes, lives in events.

    A block is in use after event `e` if `born <= e < requested`, and waits for another stream if
    `requested <= e < died`. -1 means before the first event; the number of events means after the
    last.
    """

    address: array[int] = field(default_factory=lambda: array("Q"))
    size: array[int] = field(default_factory=lambda: array("Q"))
    stream: array[int] = field(default_factory=lambda: array("Q"))
    born: array[int] = field(default_factory=lambda: array("i"))
    requested: array[int] = field(default_factory=lambda: array("i"))
    died: array[int] = field(default_factory=lambda: array("i"))
    stack: array[int] = field(default_factory=lambda: array("i"))
    tag: array[int] = field(default_factory=lambda: array("i"))

    def add(
        self, address: int, size: int, stream: int, stack: int, tag: int, born: int, end: int
    ) -> int:
        self.address.append(address)
        self.size.append(size)
        self.stream.append(stream)
        self.stack.append(stack)
        self.tag.append(tag)
        self.born.append(born)
        self.requested.append(end)
        self.died.append(end)
        return len(self.size) - 1

    def __len__(self) -> int:
        return len(self.size)


@dataclass(frozen=True)
class Segment:
    """A segment at the moment of the snapshot."""

    address: int
    size: int
    stream: int
    is_small: bool
    pool: tuple[int, int]


@dataclass
class Trace:
    """The trace of one device in a snapshot."""

    device: int
    allocator: Allocator
    settings: str
    """The value of PYTORCH_CUDA_ALLOC_CONF in the recorded process."""
    events: int
    times: array[int]
    """Time of each event, in microseconds since the first."""
    blocks: Blocks
    ranges: list[Range]
    segments: list[Segment]
    stacks: Stacks
    tags: list[str]
    """Tag 0 means no tag."""
    pool_names: dict[tuple[int, int], str]
    extents: dict[int, int]
    """Bytes that a block of the last moment takes, including a rest too small to split off."""
    emptied: list[int]
    """Events that returned memory to the driver, the first of each run."""
    failures: list[tuple[int, int]]
    """Out-of-memory errors: event and requested bytes."""
    missing_ends: int = 0
    """Blocks whose address was handed out again without a free."""

    @property
    def born_before(self) -> int:
        """The number of blocks from before the first event."""
        return sum(1 for event in self.blocks.born if event < 0)

    @cached_property
    def pools(self) -> array[int]:
        """The index of each block's pool in `pool_handles`; 0 is the default pool.

        Events do not name the pool, but segments of the last moment do: a block belongs to the
        segment at its address, if it was in use after the segment was created. A pool without
        memory at the end is unknown.
        """
        private = [segment for segment in self.segments if segment.pool != (0, 0)]
        if not private:
            return array("h", bytes(2 * len(self.blocks)))
        private.sort(key=lambda segment: segment.address)
        starts = [segment.address for segment in private]
        last = max(self.events, 1)
        begins = [last] * len(private)
        for r in self.ranges:
            at = bisect_right(starts, r.address) - 1
            if r.end == last and at >= 0 and r.address < starts[at] + private[at].size:
                begins[at] = min(begins[at], r.begin)
        places = [self.pool_handles.index(segment.pool) for segment in private]
        found = array("h")
        for address, died in zip(self.blocks.address, self.blocks.died, strict=True):
            at = bisect_right(starts, address) - 1
            inside = at >= 0 and address < starts[at] + private[at].size and died > begins[at]
            found.append(places[at] if inside else 0)
        return found

    @cached_property
    def pool_handles(self) -> list[tuple[int, int]]:
        return [(0, 0), *sorted({s.pool for s in self.segments} - {(0, 0)})]

    @property
    def seconds(self) -> float:
        return self.times[-1] / 1e6 if self.events else 0.0

    def reserved(self) -> array[int]:
        """Bytes held after each event; one number for a snapshot without events."""
        return reserved_after(self.ranges, max(self.events, 1))

    def active(self) -> array[int]:
        """Bytes of blocks after each event, including those that wait for another stream."""
        return self._sum_until(self.blocks.died)

    def allocated(self) -> array[int]:
        """Bytes of blocks in use after each event."""
        return self._sum_until(self.blocks.requested)

    def _sum_until(self, ends: array[int]) -> array[int]:
        events = max(self.events, 1)
        deltas = array("q", bytes(8 * (events + 1)))
        live = 0
        for size, born, end in zip(self.blocks.size, self.blocks.born, ends, strict=True):
            size = rounded(size)
            if born < 0:
                live += size
            else:
                deltas[born] += size
            if end < events:
                deltas[end] -= size
        for event in range(events):
            live += deltas[event]
            deltas[event] = live
        deltas.pop()
        return deltas


def rounded(size: int) -> int:
    """The block size of a request for `size` bytes."""
    return max((size + ROUNDING - 1) // ROUNDING, 1) * ROUNDING


def load(path: str | Path) -> Snapshot:
    """The snapshot in a file of `torch.cuda.memory._dump_snapshot()`.

    Raises `FerroError` for any other file. Reads only plain values: a pickle that would run code is
    refused.
    """
    try:
        with Path(path).open("rb") as file:
            # A million events are several million containers, none of which is garbage.
            was_enabled = gc.isenabled()
            gc.disable()
            try:
                snapshot = _PlainValues(file).load()
            finally:
                if was_enabled:
                    gc.enable()
    except OSError as error:
        raise FerroError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:
        raise FerroError(f"{path} is not a pickle of a snapshot: {error}") from error
    return checked(snapshot, str(path))


class _PlainValues(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, but snapshots have plain values")


def checked(snapshot: Any, name: str = "the snapshot") -> Snapshot:
    """Raises `FerroError` unless it has the keys of a snapshot."""
    if not isinstance(snapshot, Mapping) or not {"segments", "device_traces"} <= set(snapshot):
        found = sorted(map(str, snapshot))[:5] if isinstance(snapshot, Mapping) else type(snapshot)
        raise FerroError(
            f"{name} is not a memory snapshot: expected a dictionary with segments and "
            f"device_traces, as torch.cuda.memory._dump_snapshot() writes it, and found {found}"
        )
    return snapshot


def devices(snapshot: Snapshot) -> list[int]:
    """The devices with memory or events."""
    held = {segment["device"] for segment in snapshot["segments"]}
    traced = {index for index, trace in enumerate(snapshot["device_traces"]) if trace}
    return sorted(held | traced)


def read(snapshot: Snapshot, device: int) -> Trace:
    """Reads the trace of one device. Takes a second for a million events, 300 bytes for each."""
    traces = snapshot["device_traces"]
    entries = traces[device] if device < len(traces) else []
    segments = [s for s in snapshot["segments"] if s["device"] == device]
    stacks, blocks = Stacks(), Blocks()
    tags = {"": 0}
    count = len(entries)
    times = array("q", bytes(8 * count))
    start = entries[0].get("time_us", 0) if entries else 0
    live: dict[int, int] = {}
    waiting: dict[int, int] = {}
    changes: list[Change] = []
    returned: list[tuple[int, bool]] = []
    failures: list[tuple[int, int]] = []
    missing_ends = 0
    is_ours = False
    for event, entry in enumerate(entries):
        action = entry["action"]
        times[event] = entry.get("time_us", 0) - start
        if action == "alloc":
            address = entry["addr"]
            if (before := live.pop(address, waiting.pop(address, None))) is not None:
                missing_ends += 1
                blocks.died[before] = event
                blocks.requested[before] = min(blocks.requested[before], event)
            tag = tags.setdefault(entry.get("user_metadata", ""), len(tags))
            live[address] = blocks.add(
                address,
                entry["size"],
                entry["stream"],
                stacks.add(entry.get("frames", ())),
                tag,
                event,
                count,
            )
        elif action in ("free_requested", "free_completed"):
            address = entry["addr"]
            block = live.pop(address, None)
            if block is None:
                block = waiting.pop(address, None)
            if block is None:
                # The block is older than the first event. The stack of a free may be that of the
                # free itself.
                block = blocks.add(address, entry["size"], entry["stream"], 0, 0, -1, count)
            blocks.requested[block] = min(blocks.requested[block], event)
            if action == "free_requested":
                waiting[address] = block
            else:
                blocks.died[block] = event
        elif action in _COMES:
            comes = _COMES[action]
            address, size, stream = entry["addr"], entry["size"], entry["stream"]
            changes.append(Change(event, comes, address, size, stream))
            # From torch 2.15 on the note has a separate field.
            note = entry.get("internal_metadata") or entry.get("user_metadata", "")
            is_ours = is_ours or note.startswith(_OUR_NOTE)
            if not comes:
                returned.append((event, note.startswith(_OUR_NOTE)))
        elif action == "oom":
            failures.append((event, entry["size"]))
    extents = _add_survivors(blocks, live, waiting, segments, stacks, count)
    end = [(s["address"], s["total_size"], s["stream"]) for s in segments]
    settings = snapshot.get("allocator_settings", {})
    allocator = _allocator(is_ours, settings, segments, changes, entries)
    return Trace(
        device=device,
        allocator=allocator,
        settings=settings.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        events=count,
        times=times,
        blocks=blocks,
        ranges=history(at_the_start(changes, end), changes, max(count, 1)),
        segments=[
            Segment(
                s["address"],
                s["total_size"],
                s["stream"],
                s.get("segment_type") == "small",
                tuple(s.get("segment_pool_id", (0, 0))),
            )
            for s in segments
        ],
        stacks=stacks,
        tags=list(tags),
        pool_names=_pool_names(snapshot),
        extents=extents,
        emptied=_emptied(allocator, returned, entries),
        failures=failures,
        missing_ends=missing_ends,
    )


def _emptied(
    allocator: Allocator, returned: list[tuple[int, bool]], entries: list[Mapping[str, Any]]
) -> list[int]:
    """The first events of runs in which memory went back because the program requested it."""
    found, last = [], -2
    for event, has_our_note in returned:
        entry = entries[event]
        by_itself = has_our_note or (
            allocator == "ferro_alloc" and entry["action"] == "segment_unmap"
        )
        if not by_itself or _is_asked_for(entry):
            if last != event - 1:
                found.append(event)
            last = event
    return found


def _is_asked_for(entry: Mapping[str, Any]) -> bool:
    """ferro_alloc moves and returns pages by itself; a program returns them by `empty_cache()`."""
    return any(frame["name"] == "empty_cache" for frame in entry.get("frames", ()))


def _add_survivors(
    blocks: Blocks,
    live: dict[int, int],
    waiting: dict[int, int],
    segments: list[Mapping[str, Any]],
    stacks: Stacks,
    count: int,
) -> dict[int, int]:
    """Adds blocks of the last moment that no event made: they are older. Returns extents."""
    extents = {}
    for segment in segments:
        for block in segment["blocks"]:
            address = block["address"]
            if block["state"] == "inactive":
                continue
            known = live.get(address, waiting.get(address))
            if known is not None:
                extents[known] = block["size"]
                continue
            size = block.get("requested_size", block["size"])
            stack = stacks.add(block.get("frames", ()))
            number = blocks.add(address, size, segment["stream"], stack, 0, -1, max(count, 1))
            if block["state"] == "active_pending_free":
                blocks.requested[number] = -1
            extents[number] = block["size"]
    return extents


def _allocator(
    is_ours: bool,
    settings: Mapping[str, Any],
    segments: list[Mapping[str, Any]],
    changes: list[Change],
    entries: list[Mapping[str, Any]],
) -> Allocator:
    mapped = [c.size for c in changes if entries[c.event]["action"] == "segment_map"]
    # The notes are missing if the program set metadata itself. PyTorch maps 2 MiB, or multiples of
    # 20 unless another size is set.
    has_own_size = "large_segment_size" in settings.get("PYTORCH_CUDA_ALLOC_CONF", "")
    in_pages = any(size > 2 * _MIB and size % (20 * _MIB) for size in mapped)
    if is_ours or (in_pages and not has_own_size):
        return "ferro_alloc"
    expandable = any(segment.get("is_expandable", False) for segment in segments)
    if mapped or expandable or (settings.get("expandable_segments") and not segments):
        return "expandable"
    return "native"


def _pool_names(snapshot: Snapshot) -> dict[tuple[int, int], str]:
    """ferro_alloc writes them into a snapshot as annotations."""
    names = {}
    for entry in snapshot.get("external_annotations", ()):
        if "graph_pool" in entry:
            first, second = map(int, re.findall(r"\d+", entry["segment_pool_id"]))
            names[first, second] = entry["graph_pool"]
    return names
