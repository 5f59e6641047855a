"""What seeded programs consist of: contents of tensors, operations on them, and shapes of programs.

It imports no torch.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20

HOST_BYTES = 48 * MIB
"""Room for pinned sources, and as much again for what is read back, between two drains."""


@dataclass(frozen=True)
class Piece:
    """`length` bytes of the pattern number `tag` from `offset` on; or one byte value throughout."""

    tag: int
    offset: int
    length: int
    byte: int | None = None


Content = tuple[Piece, ...]

EXTRAS = (
    "checkpoints",
    "clones",
    "groups",
    "history",
    "limits",
    "metadata",
    "own_pools",
    "peers",
    "raw",
    "resets",
    "scalars",
    "sharing",
    "snapshots",
    "switches",
    "uncached",
)
"""What programs may do in addition."""


def exact_size(size: int) -> int:
    """Not less, and native's blocks of such sizes have no bytes beyond the request.

    A block that comes back with a checkpoint counts as requested in full.
    """
    unit = 512 if size <= MIB else 2 * MIB
    return -(-size // unit) * unit


SCALARS = {
    "uint8": "<B",
    "int16": "<h",
    "int32": "<i",
    "int64": "<q",
    "float32": "<f",
    "float64": "<d",
}
"""The types of device scalars, and how their values lie in memory."""


def scalar_content(dtype: str, value: float) -> Content:
    return tuple(Piece(0, 0, 1, byte) for byte in struct.pack(SCALARS[dtype], value))


def part(content: Content, offset: int, length: int) -> Content:
    pieces = []
    for piece in content:
        skipped = min(offset, piece.length)
        taken = min(piece.length - skipped, length)
        if taken:
            pieces.append(Piece(piece.tag, piece.offset + skipped, taken, piece.byte))
        offset -= skipped
        length -= taken
    return tuple(pieces)


def overwritten(old: Content | None, size: int, offset: int, new: Content) -> Content | None:
    """`new` over `old` from `offset` on; None when that leaves unknown bytes."""
    length = sum(piece.length for piece in new)
    if length == size:
        return new
    if old is None:
        return None
    end = offset + length
    return part(old, 0, offset) + new + part(old, end, size - end)


# ---- operations; numbers name tensors, streams, pools and graphs
# Streams of the second device come after those of the first.


@dataclass(frozen=True)
class Alloc:
    tensor: int
    size: int
    stream: int
    mempool: int | None = None
    cached: bool = True
    """Whether `caching_allocator_enable()` lets the allocator keep the memory."""
    raw: bool = False
    """By `caching_allocator_alloc()`, freed by `caching_allocator_delete()`."""
    handle: int | None = None
    """The `graph_pool_handle()` whose pool it comes from, with no capture."""


@dataclass(frozen=True)
class Fill:
    """An asynchronous copy of a whole pattern from pinned memory."""

    tensor: int
    stream: int
    tag: int
    slot: int
    size: int


@dataclass(frozen=True)
class Copy:
    source: int
    target: int
    stream: int
    source_offset: int
    target_offset: int
    length: int


@dataclass(frozen=True)
class Memset:
    tensor: int
    stream: int
    byte: int


@dataclass(frozen=True)
class Wait:
    """`stream` waits for all work that `other` was given so far."""

    stream: int
    other: int


@dataclass(frozen=True)
class RecordEvent:
    event: int
    stream: int


@dataclass(frozen=True)
class WaitEvent:
    """`stream` waits for the work before the event."""

    stream: int
    event: int


@dataclass(frozen=True)
class RecordStream:
    tensor: int
    stream: int


@dataclass(frozen=True)
class Free:
    tensor: int
    here: bool = False
    """Not by another thread later: what happens in its pool next depends on it."""


@dataclass(frozen=True)
class Read:
    """An asynchronous copy to pinned memory, compared with `expected` once it is there."""

    tensor: int
    stream: int
    slot: int
    expected: Content


@dataclass(frozen=True)
class SyncDevice:
    pass


@dataclass(frozen=True)
class SyncStream:
    stream: int


@dataclass(frozen=True)
class SyncEvent:
    """The host waits for the work before the event."""

    event: int


@dataclass(frozen=True)
class Limit:
    """The process may have so much more than is allocated now; None: all of the device.

    A request that this refuses, and a capture, lift it.
    """

    slack: int | None


@dataclass(frozen=True)
class EmptyCache:
    pass


@dataclass(frozen=True)
class AskStatistics:
    """Which also makes an allocator look for frees that are complete."""


@dataclass(frozen=True)
class CheckInvariants:
    pass


@dataclass(frozen=True)
class RecordHistory:
    enabled: bool
    kept: int = 0
    """How many entries; then of allocations and frees alone, with annotations and contexts."""


@dataclass(frozen=True)
class Share:
    """With another process, which never opens it. `record_stream` does nothing for it then."""

    tensor: int
    stream: int


@dataclass(frozen=True)
class Switch:
    """From ferro_alloc to the allocator before it, or back."""


@dataclass(frozen=True)
class MakeMempool:
    mempool: int
    own_allocator: bool = False


@dataclass(frozen=True)
class DropMempool:
    mempool: int


@dataclass(frozen=True)
class CopyToPeer:
    """Between devices: PyTorch orders it with the current streams of both."""

    source: int
    target: int
    source_stream: int
    target_stream: int
    source_offset: int
    target_offset: int
    length: int


@dataclass(frozen=True)
class CopyOnWrite:
    """`target` becomes a copy of `source` that is made when it is first looked at."""

    source: int
    target: int
    stream: int


@dataclass(frozen=True)
class MakeScalar:
    """A `DeviceScalar`; `tensor` is its memory, which others may use as they use any."""

    tensor: int
    stream: int
    dtype: str
    value: float


@dataclass(frozen=True)
class UpdateScalar:
    tensor: int
    stream: int
    value: float
    late: bool = False
    """A mistake: a copy from host memory that the next update overwrites, done or not."""


@dataclass(frozen=True)
class SetMetadata:
    text: str


@dataclass(frozen=True)
class Phase:
    """Operations within a `record_function`, or within what PyTorch takes for a compiled region."""

    name: str
    compiled: bool
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Snapshot:
    """Of all memory with its history, or of one pool."""

    mempool: int | None = None
    handle: int | None = None


@dataclass(frozen=True)
class ResetPeaks:
    pass


@dataclass(frozen=True)
class ResetCounts:
    pass


@dataclass(frozen=True)
class AskTooMuch:
    """A share of the device that exceeds it, or exceeds the share that the process may have."""

    share: float
    allowed: float
    mempool: int | None = None


@dataclass(frozen=True)
class NoteCheckpoint:
    checkpoint: int
    handle: int
    tensors: tuple[int, ...]
    """Those alive in the pool."""


@dataclass(frozen=True)
class GoToCheckpoint:
    """Sets a pool back. Every tensor in it that the checkpoint does not hold dies."""

    checkpoint: int
    removed: tuple[int, ...]
    """Which die: freed before, and their storages no longer own anything."""
    stale: tuple[int, ...]
    """Which die: freed by the call, which is given their storages."""
    revived: tuple[int, ...]
    """Of the checkpoint and not alive: they get new storages as owners."""
    unowned: tuple[int, ...]
    """Of the checkpoint and not alive: freed by address afterwards."""


@dataclass(frozen=True)
class CheckLive:
    """That exactly these tensors are alive in the pool."""

    handle: int
    tensors: tuple[int, ...]


@dataclass(frozen=True)
class Capture:
    graph: int
    stream: int
    handle: int | None
    """Which `graph_pool_handle()` the graph shares; None: a pool of its own."""
    with_context_manager: bool
    body: tuple[Operation, ...]


@dataclass(frozen=True)
class JoinGroup:
    """The exclusive group of the program gets a graph with its pool, or a pool."""

    graph: int | None = None
    handle: int | None = None


@dataclass(frozen=True)
class LeaveGroup:
    graph: int


@dataclass(frozen=True)
class FailCapture:
    """Begins a capture, asks for memory, and gives up; half of the memory is freed after that."""

    handle: int
    stream: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Replay:
    graph: int
    stream: int


@dataclass(frozen=True)
class DropGraph:
    graph: int


Operation = (
    Alloc
    | Fill
    | Copy
    | Memset
    | Wait
    | RecordEvent
    | WaitEvent
    | RecordStream
    | Free
    | Read
    | SyncDevice
    | SyncStream
    | SyncEvent
    | Limit
    | EmptyCache
    | AskStatistics
    | CheckInvariants
    | RecordHistory
    | Share
    | Switch
    | MakeMempool
    | DropMempool
    | CopyToPeer
    | CopyOnWrite
    | MakeScalar
    | UpdateScalar
    | SetMetadata
    | Phase
    | Snapshot
    | ResetPeaks
    | ResetCounts
    | AskTooMuch
    | NoteCheckpoint
    | GoToCheckpoint
    | CheckLive
    | Capture
    | FailCapture
    | JoinGroup
    | LeaveGroup
    | Replay
    | DropGraph
)


@dataclass(frozen=True)
class Step:
    thread: int
    operation: Operation


@dataclass(frozen=True)
class Shape:
    """What programs consist of."""

    streams: int = 4
    threads: int = 2
    graphs: bool = True
    mempools: bool = True
    empty_cache: bool = True
    extras: frozenset[str] = frozenset()
    """Of `EXTRAS`; by default none."""
    live_bytes: int = 64 * MIB
    orderly_drops: bool = False
    """Whether a graph's own stream waits for the last replay before the graph is dropped."""
    mistake: str = ""
    """`wait` or `record_stream`: what the program leaves out now and then; or `update`: it copies
    the values of device scalars from one place each in pinned memory; or `order`: the replays of an
    exclusive group are not ordered; or `late`: it leaves out late waits."""
    late_waits: str = ""
    """`stream` or `host`: what waits for uses of freed memory on other streams, and when; see
    `seeded_late`."""
