"""Shows the progress of a simulated program on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

from ferro_alloc import sim
from ferro_alloc._status import size_text

INTERVAL_S = 1.0
_CLEAR = "\r\033[K"


class Progress:
    """A line on stderr, updated each second and removed at the end; nothing without a terminal.

    It is a context manager. The line takes no lock of the allocator or of torch.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._began = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._show, name="ferro-progress", daemon=True)
        self._shown = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        if self._shown:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """Removes the line."""
        is_first = not self._end.is_set()
        self._end.set()
        if self._shown and is_first:
            self._thread.join()
            print(_CLEAR, end="", file=sys.stderr, flush=True)

    def _show(self) -> None:
        while not self._end.wait(INTERVAL_S):
            memory = max(sim.memory(), key=lambda device: device.allocated)
            seconds = time.monotonic() - self._began
            used = f"{size_text(memory.allocated)} in use, at most {size_text(memory.peak)}"
            text = f"{_CLEAR}{self._title}: {seconds:.0f} s, {used}"
            print(text, end="", file=sys.stderr, flush=True)
