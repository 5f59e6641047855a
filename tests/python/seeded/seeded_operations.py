"""The parts of seeded programs: contents of tensors, operations on them, and shapes of programs.

This module does not import torch.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20

HOST_BYTES = 48 * MIB
"""Bytes of pinned sources, and as many for results, between two drains."""


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
"""Optional kinds of operations."""


def exact_size(size: int) -> int:
    """At least `size`, and a size for which native's blocks have no bytes beyond the request.

    A block that a checkpoint restores counts as requested in full.
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
"""The types of device scalars, and the layout of their values in memory."""


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
    """`old` with `new` written at `offset`; None if that leaves unknown bytes."""
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
    """Whether `caching_allocator_alloc()` and `caching_allocator_delete()` are used for it."""
    handle: int | None = None
    """The `graph_pool_handle()` whose pool it comes from, outside a capture."""


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
    """`stream` waits for all work queued on `other` so far."""

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
    """Whether it is freed at once and not by another thread later, as its pool depends on it."""


@dataclass(frozen=True)
class Read:
    """An asynchronous copy to pinned memory, compared with `expected` once it is complete."""

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
    """The process may allocate this much more than now; None: all of the device.

    A refused request lifts the limit, and so does a capture.
    """

    slack: int | None


@dataclass(frozen=True)
class EmptyCache:
    pass


@dataclass(frozen=True)
class AskStatistics:
    """Reading statistics also makes an allocator look for complete frees."""


@dataclass(frozen=True)
class CheckInvariants:
    pass


@dataclass(frozen=True)
class RecordHistory:
    enabled: bool
    kept: int = 0
    """The most entries; they are only of allocations and frees, with annotations and contexts."""


@dataclass(frozen=True)
class Share:
    """Shares it with another process, which never opens it. `record_stream` then has no effect."""

    tensor: int
    stream: int


@dataclass(frozen=True)
class Switch:
    """Switches from ferro_alloc to the previous allocator, or back."""


@dataclass(frozen=True)
class MakeMempool:
    mempool: int
    own_allocator: bool = False


@dataclass(frozen=True)
class DropMempool:
    mempool: int


@dataclass(frozen=True)
class CopyToPeer:
    """A copy between devices. PyTorch orders it with the current streams of both."""

    source: int
    target: int
    source_stream: int
    target_stream: int
    source_offset: int
    target_offset: int
    length: int


@dataclass(frozen=True)
class CopyOnWrite:
    """`target` becomes a copy of `source` that is made at the first access."""

    source: int
    target: int
    stream: int


@dataclass(frozen=True)
class MakeScalar:
    """A `DeviceScalar`; `tensor` is its memory, which operations may use like any other."""

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
    """Whether it is a mistake: a copy from host memory that the next update overwrites early."""


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
    """A snapshot of all memory with its history, or of one pool."""

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
    """A request that exceeds the device, or the limit of the process."""

    share: float
    allowed: float
    mempool: int | None = None


@dataclass(frozen=True)
class NoteCheckpoint:
    checkpoint: int
    handle: int
    tensors: tuple[int, ...]
    """The live tensors of the pool."""


@dataclass(frozen=True)
class GoToCheckpoint:
    """Sets a pool back. Every tensor in it that the checkpoint does not contain is freed."""

    checkpoint: int
    removed: tuple[int, ...]
    """Tensors freed before the call, whose storages no longer own memory."""
    stale: tuple[int, ...]
    """Tensors that the call frees, as it gets their storages."""
    revived: tuple[int, ...]
    """Dead tensors of the checkpoint that get new storages as owners."""
    unowned: tuple[int, ...]
    """Dead tensors of the checkpoint that are freed by address afterwards."""


@dataclass(frozen=True)
class CheckLive:
    """Checks that exactly these tensors are live in the pool."""

    handle: int
    tensors: tuple[int, ...]


@dataclass(frozen=True)
class Capture:
    graph: int
    stream: int
    handle: int | None
    """The `graph_pool_handle()` that the graph shares; None: a separate pool."""
    with_context_manager: bool
    body: tuple[Operation, ...]


@dataclass(frozen=True)
class JoinGroup:
    """A graph with its pool, or a pool, joins the exclusive group of the program."""

    graph: int | None = None
    handle: int | None = None


@dataclass(frozen=True)
class LeaveGroup:
    graph: int


@dataclass(frozen=True)
class FailCapture:
    """Begins a capture, requests memory, and fails; half of the memory is freed after that."""

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
    """The parameters of a program."""

    streams: int = 4
    threads: int = 2
    graphs: bool = True
    mempools: bool = True
    empty_cache: bool = True
    extras: frozenset[str] = frozenset()
    """A subset of `EXTRAS`."""
    live_bytes: int = 64 * MIB
    orderly_drops: bool = False
    """Whether a graph's own stream waits for the last replay before the graph is dropped."""
    mistake: str = ""
    """`wait` or `record_stream`: the program leaves these out at times; or `update`: it copies
    the values of device scalars from one place each in pinned memory; or `order`: the replays of an
    exclusive group are not ordered; or `late`: it leaves out late waits."""
    late_waits: str = ""
    """`stream` or `host`: the waiter for uses of freed memory on other streams; see
    `seeded_late`."""
