"""Computes how many bytes a request takes. Needs no device and does not initialise CUDA.

The constants are those of PyTorch's own allocator and of the layout "segments", in bytes.
"""

from __future__ import annotations

from ferro_alloc import _load
from ferro_alloc._errors import FerroError
from ferro_alloc.allocator import settings
from ferro_alloc.config import Config

MIN_BLOCK_SIZE = 512
"""All blocks are multiples of this size, in both layouts."""
SMALL_SIZE = 1 << 20
"""The largest block that counts as small, in both layouts."""
SMALL_BUFFER = 2 << 20
"""A segment for small blocks."""
MIN_LARGE_ALLOC = 10 << 20
"""The smallest block that gets a segment of its own size."""
LARGE_BUFFER = 20 << 20
"""A segment for blocks between the two, unless `large_segment_size_mb` is set."""
ROUND_LARGE = 2 << 20
"""Segments for one block are multiples of this size."""


def round_size(size: int) -> int:
    """Returns the bytes of a block for `size` bytes, by PyTorch's settings in force: a multiple of
    512, and at least 512. (PyTorch asks for no block for 0 bytes.) Raises `FerroError` for an
    invalid size, or if the extension cannot be loaded."""
    return int(_load.load().round_size(max(checked_size(size), 1)))


def allocation_size(size: int, config: Config | None = None) -> int:
    """Returns the bytes taken from the driver for a block of `size` bytes without free memory.

    With pages these are whole pages, of the block that `round_size(size)` gives. In PyTorch's
    layout they are the segment for a block of exactly `size` bytes, as `get_allocation_size` in its
    allocator computes it: 20 MiB for 10 MiB - 1, although a request for that is rounded to 10 MiB
    first. `allocation_size(round_size(size))` is right for a request in both layouts.

    `config`: the settings; None: those installed, or else those of FERRO_ALLOC_CONF. Raises
    `FerroError` for an invalid size, or if the extension cannot be loaded.
    """
    chosen = config or settings() or Config.from_env()
    return int(
        _load.load().allocation_size(checked_size(size), chosen.layout, chosen.page_size_bytes)
    )


def checked_size(size: object) -> int:
    """Raises `FerroError` unless `size` is a number of bytes from 0 to 2**60 - 1."""
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 1 << 60:
        raise FerroError(f"the size is {size!r}: expected a number of bytes from 0 to 2**60 - 1")
    return size
