"""The command's own stdout and stderr, which a program may replace or close."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO


class Streams:
    """Keeps those of the moment when it is made."""

    def __init__(self) -> None:
        self._kept = {name: _Kept(getattr(sys, name)) for name in ("stdout", "stderr")}

    def restore(self) -> None:
        """Call it when the program has ended. What the program set in their place is flushed."""
        for name, kept in self._kept.items():
            current = getattr(sys, name)
            if current is not kept.stream:
                with suppress(Exception):  # of any class of the program
                    current.flush()
            setattr(sys, name, kept.get())


class _Kept:
    def __init__(self, stream: TextIO | None) -> None:
        self.stream = stream
        self._copy: int | None = None
        if stream is not None:
            with suppress(OSError, ValueError):  # it is no file
                self._copy = os.dup(stream.fileno())

    def get(self) -> TextIO | None:
        if self.stream is None or self._copy is None or self._is_open(self.stream):
            return self.stream
        return open(self._copy, "w", buffering=1, closefd=False)

    def _is_open(self, stream: TextIO) -> bool:
        try:
            os.fstat(stream.fileno())
        except (OSError, ValueError):
            return False
        return True
