"""Pools for captures: handles with a name, seals, and buffers to keep."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Self

from ferro_alloc import _load, _refusals
from ferro_alloc._errors import FerroError
from ferro_alloc.graphs._sizes import PoolSizes, pool_sizes

if TYPE_CHECKING:
    import torch

    from ferro_alloc import _C


class PoolHandle(tuple[int, int]):
    """The pair of numbers by which PyTorch identifies a pool.

    `PoolHandle(n)` is `PoolHandle((0, n))`, the form of handles that programs get. Raises
    `FerroError` for anything but a number or a pair of numbers.
    """

    __slots__ = ()

    def __new__(cls, handle: int | tuple[int, int]) -> Self:
        return super().__new__(cls, _checked((0, handle) if isinstance(handle, int) else handle))

    @property
    def id(self) -> tuple[int, int]:
        """The handle itself, because `torch.cuda.use_mem_pool()` reads the `id` of a pool."""
        return self


class CapturePool:
    """A pool that graphs are captured into. One handle has one object, so `is` compares pools.

    `CapturePool()` creates a pool with a handle of its own. A pool keeps its seal, its name and its
    buffers as long as the program holds the object, its handle is open, a capture into it runs, or
    a graph or MemPool holds its memory. Then it is gone, and its buffers are dropped. Its free
    memory returns to the driver at once if the device is idle and no capture runs, and with the
    next `empty_cache()` otherwise, and with segments: dropping a pool never waits. Before the first
    `ferro_alloc.install()` ferro_alloc is not told of the end of plain graphs: then their pools are
    dropped by the next call about pools. Thread-safe.
    """

    _pool: _C.CapturePool

    def __init__(self, name: str = "") -> None:
        _check_name("CapturePool", name)
        extension = _load.load()
        import torch

        self._pool = extension.lend_pool(torch.cuda.graph_pool_handle(), name)
        with _lock:
            _objects[self._pool.handle] = self

    @property
    def native(self) -> _C.CapturePool:
        """The extension's object, for the rest of this package."""
        return self._pool

    @property
    def handle(self) -> PoolHandle:
        return PoolHandle(self._pool.handle)

    @property
    def name(self) -> str:
        """The name for errors about the pool; may be empty, and may be set."""
        return self._pool.name

    @name.setter
    def name(self, name: str) -> None:
        _check_name("CapturePool.name", name)
        self._pool.name = name

    @property
    def is_sealed(self) -> bool:
        return self._pool.is_sealed

    def seal(self) -> None:
        """From now on a capture into the pool, or an allocation in it, raises a `RuntimeError` that
        names the pool. Existing graphs still replay, and memory of the pool may be freed."""
        self._pool.seal()
        _refusals.follow_seal()

    def unseal(self) -> None:
        self._pool.unseal()

    def record_buffer(self, buffer: Any) -> int:
        """Keeps an object alive as long as the pool, such as a tensor that its graphs read or
        write. The same object may be recorded several times. Returns its index among the buffers,
        from 0. An object that leads back to the pool lives until `clear_buffers()`."""
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

    def __copy__(self) -> CapturePool:
        return self

    def __deepcopy__(self, memo: object) -> CapturePool:
        return self

    def __repr__(self) -> str:
        sealed = ", sealed" if self.is_sealed else ""
        name = f" {self.name!r}" if self.name else ""
        return f"<CapturePool{name} {self.handle}, {self.buffer_count} buffers{sealed}>"


_lock = threading.RLock()
_objects: weakref.WeakValueDictionary[tuple[int, int], CapturePool] = weakref.WeakValueDictionary()
"""The object of each pool that the program holds."""


def _object_of(pool: _C.CapturePool) -> CapturePool:
    with _lock:
        known = _objects.get(pool.handle)
        if known is None:
            known = CapturePool.__new__(CapturePool)
            known._pool = pool
            _objects[pool.handle] = known
        return known


_NO_POOL = (0, 0)
"""PyTorch captures without a pool when it is given this handle."""

PoolLike = tuple[int, int] | CapturePool | Any
"""A handle, a `CapturePool`, or an object whose `id` is a handle, such as a MemPool."""


def graph_pool_handle(
    name: str = "", *, mem_pool: torch.cuda.MemPool | tuple[int, int] | None = None
) -> PoolHandle:
    """Returns a handle, unique in this process, also among those of
    `torch.cuda.graph_pool_handle()`. It keeps its pool until `release_graph_pool_handle()`.

    `name` appears in errors about the pool. With `mem_pool`, a MemPool or a handle of PyTorch, the
    function returns the handle of that pool, which can then be sealed and keep buffers; a pool that
    has a name keeps it. Raises `FerroError` if the extension or a CUDA build of torch is missing,
    and unless the name is a string.
    """
    _check_name("graph_pool_handle", name)
    extension = _load.load()
    import torch

    handle = handle_of(torch.cuda.graph_pool_handle() if mem_pool is None else mem_pool)
    _refuse_no_pool(handle)
    extension.open_pool(handle, name)
    return handle


def capture_pool_for_handle(handle: tuple[int, int]) -> CapturePool | None:
    """Returns the pool of a handle of `graph_pool_handle()`, of a `CapturePool`, or, once a capture
    into it began, of `torch.cuda.graph_pool_handle()` or a MemPool. None for any other handle, and
    for a released one: `CapturedGraph.pool` still returns its pool.

    Raises `FerroError` for an invalid handle.
    """
    if _checked(handle) == _NO_POOL:
        return None  # the allocator's own number for memory of no pool
    pool = _load.load().find_pool_by_handle(handle)
    return None if pool is None else _object_of(pool)


def release_graph_pool_handle(handle: tuple[int, int]) -> None:
    """Removes a handle. The pool lives until the last object and the last graph that use it are
    gone.

    Does nothing for a released or unknown handle. Raises `FerroError` for an invalid handle.
    """
    _load.load().close_pool(_checked(handle))


def handle_of(pool: PoolLike) -> PoolHandle:
    """Raises `FerroError` for an object that is no pool."""
    if isinstance(pool, CapturePool):
        return pool.handle
    return PoolHandle(_checked(pool if isinstance(pool, tuple) else getattr(pool, "id", pool)))


def pool_of(pool: PoolLike) -> CapturePool:
    """Also makes an unknown handle known. Raises `FerroError` for PyTorch's handle of no pool."""
    if isinstance(pool, CapturePool):
        return pool
    handle = handle_of(pool)
    _refuse_no_pool(handle)
    return _object_of(_load.load().lend_pool(handle))


def pool_or_none(pool: PoolLike | None) -> CapturePool | None:
    """Like `pool_of`; None for no pool, in PyTorch's form too."""
    return None if pool is None or handle_of(pool) == _NO_POOL else pool_of(pool)


def known_pool(handle: tuple[int, int]) -> CapturePool | None:
    """Also returns a pool whose handle was released."""
    pool = _load.load().find_pool(handle)
    return None if pool is None else _object_of(pool)


def name_of(handle: tuple[int, int]) -> str:
    """Empty for an unknown pool too."""
    pool = _load.load().find_pool(handle)
    return "" if pool is None else pool.name


def _check_name(function: str, name: object) -> None:
    if not isinstance(name, str):
        raise FerroError(f"{function}({name!r}): expected a name, or nothing")


def _refuse_no_pool(handle: PoolHandle) -> None:
    if handle == _NO_POOL:
        raise FerroError(f"{tuple(handle)} is PyTorch's handle of no pool: expected that of a pool")


def _checked(handle: object) -> tuple[int, int]:
    if isinstance(handle, tuple) and len(handle) == 2:
        first, second = handle
        if all(type(n) is int and 0 <= n < 1 << 64 for n in (first, second)):
            return first, second
    raise FerroError(
        f"{handle!r} is not the handle of a graph pool: expected a pair of numbers, as "
        "graph_pool_handle() returns it, a CapturePool or a MemPool. Pass a stream as stream=, and "
        "a mode as capture_error_mode="
    )
