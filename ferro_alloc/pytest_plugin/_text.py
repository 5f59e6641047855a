"""Numbers as text."""

from __future__ import annotations

from ferro_alloc import _status


def size_text(size: int) -> str:
    """As elsewhere, but in MiB below 1 GiB: tests are small."""
    return _status.size_text(size, least=1.0 if size >= 1 << 20 else 0.1)
