"""Pools that graphs are captured into: handles with a name, seals, and buffers to keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferro_alloc import _load
from ferro_alloc._errors import FerroError
from ferro_alloc.graphs._sizes import PoolSizes, pool_sizes

if TYPE_CHECKING:
    import torch

    from ferro_alloc import _C


class PoolHandle(tuple[int, int]):
    """The pair of numbers under which PyTorch knows a pool."""

    __slots__ = ()

    @property
    def id(self) -> tuple[int, int]:
        """Itself, which is what `torch.cuda.use_mem_pool()` asks of a pool."""
        return self


class CapturePool:
    """One pool, apart from its memory. Thread-safe; two objects of one pool are equal.

    It is known until its handle is released and no graph or MemPool holds its memory any more. What
    graphs hold is seen while ferro_alloc is in PyTorch's place; otherwise the handle alone counts.
    """

    def __init__(self, pool: _C.CapturePool) -> None:
        self._pool = pool

    @property
    def native(self) -> _C.CapturePool:
        """For the rest of this package."""
        return self._pool

    @property
    def handle(self) -> PoolHandle:
        return PoolHandle(self._pool.handle)

    @property
    def name(self) -> str:
        """As it was given to `graph_pool_handle()`; may be empty."""
        return self._pool.name

    @property
    def is_sealed(self) -> bool:
        return self._pool.is_sealed

    def seal(self) -> None:
        """From now on a capture into the pool, or an allocation in it, raises a `RuntimeError` that
        names the pool. Graphs that exist replay, and what the pool handed out may be freed."""
        self._pool.seal()

    def unseal(self) -> None:
        self._pool.unseal()

    def record_buffer(self, buffer: Any) -> int:
        """Keeps anything alive as long as the pool: what graphs of the pool read or write, and
        nobody else holds. The same object may be recorded several times. Returns its index among
        the buffers, from 0."""
        return self._pool.record_buffer(buffer)

    @property
    def buffer_count(self) -> int:
        return self._pool.buffer_count

    def clear_buffers(self) -> None:
        """Lets go of all buffers, in the order in which they were recorded; indices begin at 0
        again."""
        self._pool.clear_buffers()

    def sizes(self) -> PoolSizes:
        """What the pool holds, on all devices together; zeros while it has no memory. Raises
        `FerroError` while ferro_alloc is not in PyTorch's place."""
        return pool_sizes(self.handle)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CapturePool) and other.handle == self.handle

    def __hash__(self) -> int:
        return hash(self.handle)

    def __repr__(self) -> str:
        sealed = ", sealed" if self.is_sealed else ""
        name = f" {self.name!r}" if self.name else ""
        return f"<CapturePool{name} {self.handle}, {self.buffer_count} buffers{sealed}>"


PoolLike = tuple[int, int] | CapturePool | Any
"""A handle, a `CapturePool`, or anything with an `id` that is a handle, as a MemPool has."""


def graph_pool_handle(name: str = "", *, mem_pool: torch.cuda.MemPool | None = None) -> PoolHandle:
    """A new handle, unique in this process also among those of `torch.cuda.graph_pool_handle()`.

    `name` is for people; it stands in errors about the pool. With `mem_pool` it is the handle of
    that pool, so that it can be sealed and keep buffers. Raises `FerroError` when the extension or
    a CUDA build of torch is missing, and for a name that is no text.
    """
    if not isinstance(name, str):
        raise FerroError(f"graph_pool_handle({name!r}): expected a name, or nothing")
    extension = _load.load()
    import torch

    pair = torch.cuda.graph_pool_handle() if mem_pool is None else mem_pool.id
    handle = PoolHandle(_checked(tuple(pair)))
    extension.open_pool(handle, name)
    return handle


def capture_pool_for_handle(handle: tuple[int, int]) -> CapturePool | None:
    """The pool of a handle; None for one that `graph_pool_handle()` did not give, and from
    `release_graph_pool_handle()` on. `CapturedGraph.pool` is it as long as a graph holds it.

    Raises `FerroError` for what is no handle at all.
    """
    pool = _load.load().find_open_pool(_checked(handle))
    return None if pool is None else CapturePool(pool)


def release_graph_pool_handle(handle: tuple[int, int]) -> None:
    """Lets go of a handle. The pool goes with the last graph that holds it, or else at once.

    Does nothing for a handle that is released already, or unknown. Raises `FerroError` for what is
    no handle at all.
    """
    _load.load().close_pool(_checked(handle))


def pool_of(pool: PoolLike) -> CapturePool:
    """One that was unknown is known from now on as long as graphs or MemPools hold it."""
    if isinstance(pool, CapturePool):
        return pool
    handle = _checked(pool if isinstance(pool, tuple) else getattr(pool, "id", pool))
    extension = _load.load()
    known = extension.find_pool(handle)
    if known is not None:
        return CapturePool(known)
    opened = CapturePool(extension.open_pool(handle, ""))
    extension.close_pool(handle)
    return opened


def pool_of_graph(graph: torch.cuda.CUDAGraph) -> CapturePool:
    return pool_of(tuple(graph.pool()))


def _checked(handle: object) -> tuple[int, int]:
    if isinstance(handle, tuple) and len(handle) == 2:
        first, second = handle
        if all(type(n) is int and 0 <= n < 1 << 64 for n in (first, second)):
            return first, second
    raise FerroError(
        f"{handle!r} is no handle of a graph pool: expected a pair of numbers, as "
        "graph_pool_handle() gives it"
    )
