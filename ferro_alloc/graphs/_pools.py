"""Pools for captures: handles with a name, seals, and buffers to keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferro_alloc import _load
from ferro_alloc._errors import FerroError
from ferro_alloc.graphs._sizes import PoolSizes, pool_sizes

if TYPE_CHECKING:
    import torch

    from ferro_alloc import _C


class PoolHandle(tuple[int, int]):
    """The pair of numbers by which PyTorch identifies a pool."""

    __slots__ = ()

    @property
    def id(self) -> tuple[int, int]:
        """The handle itself, because `torch.cuda.use_mem_pool()` reads the `id` of a pool."""
        return self


class CapturePool:
    """One pool, without its memory. Thread-safe; two objects of one pool are equal.

    It is known until its handle is released and no graph or MemPool holds its memory. ferro_alloc
    sees the memory of graphs while it is installed; otherwise only the handle counts.
    """

    def __init__(self, pool: _C.CapturePool) -> None:
        self._pool = pool

    @property
    def native(self) -> _C.CapturePool:
        """The extension's object, for the rest of this package."""
        return self._pool

    @property
    def handle(self) -> PoolHandle:
        return PoolHandle(self._pool.handle)

    @property
    def name(self) -> str:
        """The name passed to `graph_pool_handle()`; may be empty."""
        return self._pool.name

    @property
    def is_sealed(self) -> bool:
        return self._pool.is_sealed

    def seal(self) -> None:
        """From now on a capture into the pool, or an allocation in it, raises a `RuntimeError` that
        names the pool. Existing graphs still replay, and memory of the pool may be freed."""
        self._pool.seal()

    def unseal(self) -> None:
        self._pool.unseal()

    def record_buffer(self, buffer: Any) -> int:
        """Keeps an object alive as long as the pool, such as a tensor that its graphs read or
        write. The same object may be recorded several times. Returns its index among the buffers,
        from 0."""
        return self._pool.record_buffer(buffer)

    @property
    def buffer_count(self) -> int:
        return self._pool.buffer_count

    def clear_buffers(self) -> None:
        """Drops all buffers, in the order in which they were recorded; indices begin at 0 again."""
        self._pool.clear_buffers()

    def sizes(self) -> PoolSizes:
        """Returns the memory that the pool holds, on all devices together; zeros without memory.
        Raises `FerroError` while ferro_alloc is not installed."""
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
"""A handle, a `CapturePool`, or an object whose `id` is a handle, such as a MemPool."""


def graph_pool_handle(name: str = "", *, mem_pool: torch.cuda.MemPool | None = None) -> PoolHandle:
    """Returns a handle, unique in this process, also among those of
    `torch.cuda.graph_pool_handle()`.

    `name` appears in errors about the pool. With `mem_pool` the function returns the handle of that
    pool, which can then be sealed and keep buffers. Raises `FerroError` if the extension or a CUDA
    build of torch is missing, and unless the name is a string.
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
    """Returns the pool of a handle; None for a handle that `graph_pool_handle()` did not return, or
    that was released. `CapturedGraph.pool` returns the pool as long as a graph holds it.

    Raises `FerroError` for an invalid handle.
    """
    pool = _load.load().find_open_pool(_checked(handle))
    return None if pool is None else CapturePool(pool)


def release_graph_pool_handle(handle: tuple[int, int]) -> None:
    """Releases a handle. The pool lives until the last graph that holds it is gone.

    Does nothing for a released or unknown handle. Raises `FerroError` for an invalid handle.
    """
    _load.load().close_pool(_checked(handle))


def pool_of(pool: PoolLike) -> CapturePool:
    """Registers an unknown pool, as long as graphs or MemPools hold it."""
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
        f"{handle!r} is not the handle of a graph pool: expected a pair of numbers, as "
        "graph_pool_handle() returns it"
    )
