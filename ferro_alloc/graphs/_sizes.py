"""Device memory that graphs and pools hold, in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ferro_alloc import _load
from ferro_alloc._errors import FerroError
from ferro_alloc.allocator import is_installed

NOT_OURS = "sizes are known for pools of ferro_alloc: call ferro_alloc.install() before capturing"


@dataclass(frozen=True)
class GraphSizes:
    """`private_bytes + shared_bytes == live_bytes + scratch_bytes`."""

    private_bytes: int
    """Allocated by this graph's capture, and by no other graph of the pool."""
    live_bytes: int
    """In tensors that are still in use, such as outputs and state."""
    scratch_bytes: int
    """Freed since the capture; each replay writes them again."""
    shared_bytes: int
    """Also allocated by another graph of the pool."""


@dataclass(frozen=True)
class PoolSizes:
    """`private_bytes == live_bytes + scratch_bytes`. Those of all pools and of the default pool
    together are the reserved bytes of `torch.cuda.memory_stats()`."""

    private_bytes: int
    """Taken from the device, and private to this pool."""
    live_bytes: int
    """In blocks that are in use."""
    scratch_bytes: int
    """The rest: for the replays of its graphs, and for its next captures."""
    shared_bytes: int
    """The part of `private_bytes` that more than one graph allocated."""
    asleep_bytes: int = 0
    """What `wake()` takes from the device for memory of the pool that is asleep, which the other
    numbers do not count. Scratch of an exclusive group counts for each of its pools."""


@dataclass(frozen=True)
class PrivatePool:
    """A pool of graphs or a MemPool with memory on a device."""

    handle: tuple[int, int]
    name: str
    """The name passed to `graph_pool_handle()`; may be empty."""
    sizes: PoolSizes


def private_pools(device: int) -> tuple[PrivatePool, ...]:
    found = _load.load().private_pools(device)
    return tuple(PrivatePool(handle, name, PoolSizes(**sizes)) for handle, name, sizes in found)


def pool_sizes(handle: tuple[int, int]) -> PoolSizes:
    if not is_installed():
        raise FerroError(NOT_OURS)
    import torch

    sizes = [
        pool.sizes
        for device in range(torch.cuda.device_count())
        for pool in private_pools(device)
        if pool.handle == handle
    ]
    return PoolSizes(
        private_bytes=sum(size.private_bytes for size in sizes),
        live_bytes=sum(size.live_bytes for size in sizes),
        scratch_bytes=sum(size.scratch_bytes for size in sizes),
        shared_bytes=sum(size.shared_bytes for size in sizes),
        asleep_bytes=sum(size.asleep_bytes for size in sizes),
    )
