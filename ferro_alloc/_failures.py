"""What stood behind an out-of-memory error, as numbers."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class StreamShare:
    """What one stream holds of the default pool."""

    stream: int
    """The handle, as `torch.cuda.Stream.cuda_stream`; 0 is the default stream."""
    reserved_bytes: int
    live_bytes: int


@dataclass(frozen=True)
class PoolShare:
    """What the pool of a graph or a MemPool holds."""

    name: str
    """The name that it was given, else its id."""
    reserved_bytes: int
    live_bytes: int


@dataclass(frozen=True)
class CallSite:
    """A line of the program, and the live blocks that it asked for."""

    line: str
    """As in `train.py:12 forward`: the innermost line outside of libraries."""
    live_bytes: int
    blocks: int


@dataclass(frozen=True)
class TagShare:
    """The live blocks that were asked for under a tag."""

    name: str
    live_bytes: int
    blocks: int


@dataclass(frozen=True)
class OutOfMemory:
    """A request that failed: what was missing, who held what, and what to try.

    Sizes are in bytes, of the moment of the failure.
    """

    device: int
    verdict: str
    """One word or two, as in the message."""
    advice: str
    """What to try next."""
    request_bytes: int
    shortfall_bytes: int
    """What was missing after all that could still be had; 0 where it was not for want of bytes."""
    capacity_bytes: int
    """Of the device."""
    device_free_bytes: int
    """By the driver."""
    limit_bytes: int | None
    """On both allocators together; None: there is none."""
    reserved_bytes: int
    """By ferro_alloc; the next four are its parts, but for idle pages."""
    live_bytes: int
    waiting_bytes: int
    """Freed, but other streams or a running capture may use it still."""
    cached_bytes: int
    cached_in_pools_bytes: int
    """In pools of graphs and MemPools, which keep it while they are held."""
    previous_reserved_bytes: int
    """By the allocator before ferro_alloc, in this process."""
    previous_live_bytes: int
    other_bytes: int
    """Neither of the two holds it: other processes, libraries, the CUDA context."""
    streams: tuple[StreamShare, ...]
    """The largest first."""
    pools: tuple[PoolShare, ...]
    """The largest first."""
    call_sites: tuple[CallSite, ...]
    """The 16 largest, of what ferro_alloc holds. Empty unless
    `torch.cuda.memory._record_memory_history()` is on; blocks from before it are in none."""
    tags: tuple[TagShare, ...]
    """The largest first. Empty before the first `ferro_alloc.tag()`."""


def explain(error: BaseException) -> OutOfMemory | None:
    """The numbers behind a `torch.OutOfMemoryError`, or an error that quotes its message. The first
    `install()` makes them the error's own attribute `ferro_alloc` too.

    None for an error that ferro_alloc did not raise, for a request that a limit rejected at once
    (`throw_on_cudamalloc_oom`), and for one that is older than the last 16 of the process.
    Thread-safe.
    """
    if not isinstance(error, BaseException):
        raise TypeError(f"explain() got {error!r}: expected an exception")
    extension = sys.modules.get("ferro_alloc._C")
    found = None if extension is None else extension.find_failure(str(error))
    if not found:
        return None
    streams = tuple(StreamShare(*share) for share in found.pop("streams"))
    pools = tuple(PoolShare(*share) for share in found.pop("pools"))
    call_sites = tuple(CallSite(*site) for site in found.pop("call_sites"))
    tags = tuple(TagShare(*share) for share in found.pop("tags"))
    return OutOfMemory(**found, streams=streams, pools=pools, call_sites=call_sites, tags=tags)
