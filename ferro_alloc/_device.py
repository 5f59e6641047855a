"""The memory of one device as numbers, for tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ferro_alloc import _load, sizes
from ferro_alloc._devices import device_index
from ferro_alloc._errors import FerroError
from ferro_alloc.allocator import is_installed
from ferro_alloc.graphs._sizes import PrivatePool, private_pools

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class CacheStats:
    """The outcomes of the requests since the start. Their sum is the number of requests."""

    hits: int
    """Requests that found a free block at once."""
    late_hits: int
    """Requests that needed no new page from the driver, but for which blocks were merged, pages
    moved or other memory was found; `Status.devices` has the steps."""
    misses: int
    """Requests that took new pages from the driver, or failed."""


@dataclass(frozen=True)
class DeviceNumbers:
    """The memory of ferro_alloc on one device at one moment, all streams and pools together.

    Sizes are in bytes. The names are those of `torch.cuda` where it has the same number.
    """

    memory_allocated: int
    """Sizes of the blocks in use."""
    max_memory_allocated: int
    """The maximum of `memory_allocated` since the start or the last `reset_peak_stats()`."""
    memory_reserved: int
    """Memory taken from the driver and not returned."""
    requested_bytes: int
    """What the program asked for in the blocks in use: without their rounding."""
    cached_bytes: int
    """Reserved bytes that no block uses. Blocks that wait for another stream count neither as
    allocated nor as cached."""
    blocks: int
    """The number of blocks in use."""
    free_blocks: int
    """The number of free blocks between them."""
    cache_stats: CacheStats
    slowest_miss_ms: float
    """The host's time for the slowest request that was no hit, without its wait for those of other
    threads, since the start or the last `reset_slowest_miss()` or `reset_peak_stats()`."""


@dataclass(frozen=True, repr=False)
class DeviceMemoryView:
    """A device's memory under ferro_alloc. Each access reads the current numbers; thread-safe.

    All methods raise `FerroError` while ferro_alloc is not installed, or does not serve the device
    because CUDA was not used yet. A refusal of the driver raises `torch.AcceleratorError`.

    What `torch.cuda.memory_stats()` has too, and `blocks`, count memory of the previous allocator,
    which serves all of it with `layout="segments"`. The other numbers exclude it.
    """

    index: int

    def __repr__(self) -> str:
        try:
            numbers = str(self.numbers())
        except FerroError as error:
            numbers = str(error)
        return f"<DeviceMemoryView of device {self.index}: {numbers}>"

    def numbers(self) -> DeviceNumbers:
        """All numbers of one moment, unless other threads allocate or free meanwhile."""
        numbers = _ask("device_view", self.index)
        return DeviceNumbers(**{**numbers, "cache_stats": CacheStats(**numbers["cache_stats"])})

    @property
    def memory_allocated(self) -> int:
        return self.numbers().memory_allocated

    @property
    def max_memory_allocated(self) -> int:
        return self.numbers().max_memory_allocated

    @property
    def memory_reserved(self) -> int:
        return self.numbers().memory_reserved

    @property
    def requested_bytes(self) -> int:
        return self.numbers().requested_bytes

    @property
    def cached_bytes(self) -> int:
        return self.numbers().cached_bytes

    @property
    def blocks(self) -> int:
        return self.numbers().blocks

    @property
    def free_blocks(self) -> int:
        return self.numbers().free_blocks

    @property
    def cache_stats(self) -> CacheStats:
        return self.numbers().cache_stats

    @property
    def slowest_miss_ms(self) -> float:
        return self.numbers().slowest_miss_ms

    @property
    def private_pools(self) -> tuple[PrivatePool, ...]:
        """The pools of graphs and MemPools that have memory on this device, with their sizes."""
        _require_installed()
        return private_pools(self.index)

    def empty_cache(self) -> None:
        """Returns the cached memory of this device to the driver, in whole pages."""
        _ask("empty_cache", self.index)

    def reset_peak_stats(self) -> None:
        """Resets all peaks of this device to the current values, including PyTorch's."""
        _ask("reset_peak", self.index)

    def reset_slowest_miss(self) -> None:
        """Resets `slowest_miss_ms` to 0."""
        _ask("reset_slowest_miss", self.index)

    def round_size(self, size: int) -> int:
        """The same as `ferro_alloc.sizes.round_size()`."""
        return sizes.round_size(size)

    def bytes_from_driver(self, size: int) -> int:
        """Bytes that a request for `size` bytes on the current stream would take from the driver.

        0 if free memory can serve it. This is a forecast: nothing is allocated or reserved.
        """
        return int(_ask("bytes_from_driver", self.index, sizes.checked_size(size)))


def device(device: int | str | torch.device | None = None) -> DeviceMemoryView:
    """Returns the view of a device as torch names it, by default of the current one.

    Raises `FerroError` for a value that names no device, or while ferro_alloc is not installed.
    Initialises CUDA.
    """
    _require_installed()
    import torch

    torch.cuda.init()
    return DeviceMemoryView(device_index(device))


def _require_installed() -> None:
    if not is_installed():
        raise FerroError("ferro_alloc is not installed: call ferro_alloc.install() first")


def _ask(name: str, *arguments: int) -> Any:
    _require_installed()
    import torch

    try:
        return getattr(_load.load(), name)(*arguments)
    except torch.AcceleratorError:
        raise
    except RuntimeError as error:
        raise FerroError(str(error)) from error
