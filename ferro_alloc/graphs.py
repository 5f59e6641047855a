"""Pools that CUDA graphs are captured into: handles with a name, seals, and buffers to keep.

A *handle* is the pair of numbers under which PyTorch knows a pool: `torch.cuda.graph(pool=handle)`,
`torch.cuda.make_graphed_callables(pool=handle)` and `CUDAGraph.capture_begin(pool=handle)` take it
as it is. All of this exists without a GPU and without `ferro_alloc.install()`; seals and the care
for what graphs hold need ferro_alloc in PyTorch's place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferro_alloc import _load
from ferro_alloc._errors import FerroError

if TYPE_CHECKING:
    from ferro_alloc import _C

PoolHandle = tuple[int, int]
"""As PyTorch's `graph_pool_handle()` and `CUDAGraph.pool()` give it."""


class CapturePool:
    """One pool, apart from its memory. Thread-safe; two objects of one pool are equal.

    It is known until its handle is released and no graph or MemPool holds its memory any more. What
    graphs hold is seen while ferro_alloc is in PyTorch's place; otherwise the handle alone counts.
    """

    def __init__(self, pool: _C.CapturePool) -> None:
        self._pool = pool

    @property
    def handle(self) -> PoolHandle:
        return self._pool.handle

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

    def record_buffer(self, buffer: Any) -> None:
        """Keeps anything alive as long as the pool: what graphs of the pool read or write, and
        nobody else holds. The same object may be recorded several times."""
        self._pool.record_buffer(buffer)

    @property
    def buffer_count(self) -> int:
        return self._pool.buffer_count

    def clear_buffers(self) -> None:
        """Lets go of all buffers, in the order in which they were recorded."""
        self._pool.clear_buffers()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CapturePool) and other.handle == self.handle

    def __hash__(self) -> int:
        return hash(self.handle)

    def __repr__(self) -> str:
        sealed = ", sealed" if self.is_sealed else ""
        name = f" {self.name!r}" if self.name else ""
        return f"<CapturePool{name} {self.handle}, {self.buffer_count} buffers{sealed}>"


def graph_pool_handle(name: str = "") -> PoolHandle:
    """A new handle, unique in this process also among those of `torch.cuda.graph_pool_handle()`.

    `name` is for people; it stands in errors about the pool. Raises `FerroError` when the extension
    or a CUDA build of torch is missing.
    """
    extension = _load.load()
    import torch

    first, second = torch.cuda.graph_pool_handle()
    extension.open_pool((first, second), name)
    return first, second


def capture_pool_for_handle(handle: PoolHandle) -> CapturePool | None:
    """The pool of a handle; None for one that `graph_pool_handle()` did not give, or that is gone.

    Raises `FerroError` for what is no handle at all.
    """
    pool = _load.load().find_pool(_checked(handle))
    return None if pool is None else CapturePool(pool)


def release_graph_pool_handle(handle: PoolHandle) -> None:
    """Lets go of a handle. The pool goes with the last graph that holds it, or else at once.

    Does nothing for a handle that is released already, or unknown. Raises `FerroError` for what is
    no handle at all.
    """
    _load.load().close_pool(_checked(handle))


def _checked(handle: object) -> PoolHandle:
    if isinstance(handle, tuple) and len(handle) == 2:
        first, second = handle
        if all(type(n) is int and 0 <= n < 1 << 64 for n in (first, second)):
            return first, second
    raise FerroError(
        f"{handle!r} is no handle of a graph pool: expected a pair of numbers, as "
        "graph_pool_handle() gives it"
    )
