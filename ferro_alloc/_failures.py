"""The facts of an out-of-memory error, as numbers."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class StreamShare:
    """Memory of the default pool that one stream holds."""

    stream: int
    """The handle, as `torch.cuda.Stream.cuda_stream`; 0 is the default stream."""
    reserved_bytes: int
    live_bytes: int


@dataclass(frozen=True)
class PoolShare:
    """Memory that the pool of a graph or a MemPool holds."""

    name: str
    """Its name, or else its id."""
    reserved_bytes: int
    live_bytes: int


@dataclass(frozen=True)
class CallSite:
    """A line of the program, and the live blocks that it requested."""

    line: str
    """The innermost line outside of libraries, as in `train.py:12 forward`."""
    live_bytes: int
    blocks: int


@dataclass(frozen=True)
class TagShare:
    """The live blocks that were requested under a tag."""

    name: str
    live_bytes: int
    blocks: int


@dataclass(frozen=True)
class OutOfMemory:
    """A failed request: the missing memory, the holders of memory, and what to try.

    Sizes are in bytes, at the moment of the failure.
    """

    device: int
    verdict: str
    """One or two words, as in the message."""
    advice: str
    """What to try next."""
    request_bytes: int
    shortfall_bytes: int
    """Bytes missing after all steps; 0 if the request failed for another reason than bytes."""
    capacity_bytes: int
    """Of the device."""
    device_free_bytes: int
    """By the driver."""
    limit_bytes: int | None
    """Limit on both allocators together; None without one."""
    reserved_bytes: int
    """Reserved by ferro_alloc; the next four are its parts, except idle pages."""
    live_bytes: int
    waiting_bytes: int
    """Freed, but other streams or a running capture may still use it."""
    cached_bytes: int
    cached_in_pools_bytes: int
    """In pools of graphs and MemPools, which keep it while they are held."""
    previous_reserved_bytes: int
    """Reserved by the previous allocator, in this process."""
    previous_live_bytes: int
    asleep_bytes: int
    """What `wake()` will take again for memory that is asleep. `live_bytes`, pools, call sites and
    tags do not count it."""
    saved_host_bytes: int
    """Its contents in host memory."""
    other_bytes: int
    """Held by neither allocator: other processes, libraries, the CUDA context."""
    streams: tuple[StreamShare, ...]
    """The largest first."""
    pools: tuple[PoolShare, ...]
    """The largest first."""
    call_sites: tuple[CallSite, ...]
    """The 16 largest, of ferro_alloc's memory. Empty unless
    `torch.cuda.memory._record_memory_history()` is on; earlier blocks are in none."""
    tags: tuple[TagShare, ...]
    """The largest first. Empty before the first `ferro_alloc.tag()`."""


def explain(error: BaseException) -> OutOfMemory | None:
    """Returns the numbers of a `torch.OutOfMemoryError`, or of an error that quotes its message.
    That of a `wake()` has the bytes to wake as `request_bytes`.
    After the first `install()` the error also has them as its attribute `ferro_alloc`.

    Returns None for an error that ferro_alloc did not raise, for a request that a limit rejected at
    once (`throw_on_cudamalloc_oom`, or the hard limit of a tag), and for an error older than the
    last 16 of the process. Thread-safe.
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
