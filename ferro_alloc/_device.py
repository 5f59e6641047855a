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
class DeviceNumbers:
    """The memory of ferro_alloc on one device at one moment, all streams and pools together."""

    allocated_bytes: int
    """Sizes of the blocks in use."""
    peak_allocated_bytes: int
    """The maximum of `allocated_bytes` since the start or the last `reset_peak()`."""
    reserved_bytes: int
    """Memory taken from the driver and not returned."""
    cached_bytes: int
    """Reserved bytes that no block uses. Blocks that wait for another stream count neither as
    allocated nor as cached."""
    blocks: int
    """The number of blocks in use."""
    free_blocks: int
    """The number of free blocks between them."""
    hits: int
    """Requests since the start that found a free block at once."""
    misses: int
    """Requests since the start that did not; `Status.devices` has the steps that served them."""
    slowest_miss_ms: float
    """The host's time for the slowest miss, without its wait for those of other threads, since the
    start or the last `reset_slowest_miss()` or `reset_peak()`."""


@dataclass(frozen=True)
class DeviceMemoryView:
    """A device's memory under ferro_alloc. Each access reads the current numbers; thread-safe.

    All methods raise `FerroError` while ferro_alloc is not installed, or does not serve the device
    because CUDA was not used yet. A refusal of the driver raises `torch.AcceleratorError`. The
    numbers exclude memory of the previous allocator; `torch.cuda.memory_stats()` counts both.
    """

    index: int

    def numbers(self) -> DeviceNumbers:
        """All numbers of one moment, unless other threads allocate or free meanwhile."""
        return DeviceNumbers(**_ask("device_view", self.index))

    @property
    def allocated_bytes(self) -> int:
        return self.numbers().allocated_bytes

    @property
    def peak_allocated_bytes(self) -> int:
        return self.numbers().peak_allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        return self.numbers().reserved_bytes

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
    def hits(self) -> int:
        return self.numbers().hits

    @property
    def slowest_miss_ms(self) -> float:
        return self.numbers().slowest_miss_ms

    @property
    def misses(self) -> int:
        return self.numbers().misses

    @property
    def private_pools(self) -> tuple[PrivatePool, ...]:
        """The pools of graphs and MemPools that have memory on this device, with their sizes."""
        _require_installed()
        return private_pools(self.index)

    def empty_cache(self) -> None:
        """Returns the cached memory of this device to the driver, in whole pages."""
        _ask("empty_cache", self.index)

    def reset_peak(self) -> None:
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
