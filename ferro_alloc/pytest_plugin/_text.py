"""Numbers as text."""

from __future__ import annotations

from ferro_alloc._status import gib


def size_text(size: int) -> str:
    return gib(size) if size >= 1 << 30 else f"{size / (1 << 20):.2f} MiB"
