"""Memory that keeps its pages, for libraries that registered it by its handles."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING

from ferro_alloc import _load

if TYPE_CHECKING:
    import torch


class Pin:
    """Memory pinned by `pin()`, until `unpin()` or the end of a `with` block. Thread-safe."""

    def __init__(self, address: int, nbytes: int, keeps: torch.UntypedStorage | None) -> None:
        self.address = address
        """Its first device address."""
        self.nbytes = nbytes
        """The number of pinned bytes; the rest of their pages is pinned too."""
        self._keeps = keeps
        self._lock = threading.Lock()
        if nbytes != 0 and _load.load().is_asleep(address):
            raise ValueError(
                f"pin() cannot keep the pages of memory that is asleep, {nbytes} bytes at "
                f"{address:#x}: call ferro_alloc.wake() first"
            )
        self._pinned = nbytes != 0 and bool(_load.load().pin(address, nbytes))
        if not self._pinned and keeps is None:
            raise ValueError(
                f"pin() found no memory of ferro_alloc behind all of the {nbytes} bytes at "
                f"{address:#x}: give a tensor, or a range of memory that is in use"
            )

    def unpin(self) -> None:
        """Ends the pin. A second call does nothing."""
        with self._lock:
            pinned, self._pinned = self._pinned, False
        if pinned:
            _load.load().unpin(self.address, self.nbytes)
        self._keeps = None

    def __enter__(self) -> Pin:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.unpin()


def pin(memory: torch.Tensor | tuple[int, int]) -> Pin:
    """Keeps the pages behind a tensor, or behind a range (address, bytes), in place.

    It serves libraries that identify memory by its handles, as RDMA registrations do. Until
    `Pin.unpin()` the pages do not move, serve no other address, and do not return to the driver.
    Whole pages are pinned, including other
    memory on them. The memory may lie on several handles; a block of a
    `torch.cuda.MemPool(no_split=True)` is one allocation of the driver, and never moves anyway.

    A tensor's whole storage is pinned and kept alive. For a range, the addresses are pinned: when
    its block is freed, its pages stay and serve the next one. Memory of the previous allocator does
    not move while it is in use; then the tensor is only kept alive. Pins are counted: each needs
    its own `unpin()`. Raises `ValueError` for a tensor that is not in CUDA memory, for memory that
    is asleep, and for a range that is not entirely in memory of ferro_alloc; `TypeError` for any
    other argument.
    """
    import torch

    if isinstance(memory, torch.Tensor):
        if not memory.is_cuda:
            raise ValueError(f"pin() expected a tensor in CUDA memory, got one on {memory.device}")
        storage = memory.untyped_storage()
        return Pin(storage.data_ptr(), storage.nbytes(), storage)
    match memory:
        case (int(address), int(nbytes)) if address > 0 and nbytes > 0:
            return Pin(address, nbytes, None)
    raise TypeError(
        "pin() expected a tensor or a pair of positive numbers, the address and the bytes of a "
        f"range, got {memory!r}"
    )
