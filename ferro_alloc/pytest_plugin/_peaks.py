"""Peaks of a test, beside those of the program.

Allocators keep one peak of each statistic. The first test that is measured replaces the functions
of torch that read and reset the peaks: a reset by the plugin or the program keeps the peaks so far
for the other, and each reads the highest of its own. Peaks that ferro_alloc or C++ reads without
these functions restart with each measured test.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

Stats = dict[str, Any]
_READS = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")


class View:
    """The statistics of each device, with the peaks since this view was restarted."""

    def __init__(self, peaks: Peaks) -> None:
        self._peaks = peaks
        self.kept: dict[int, Stats] = {}
        """Peaks since the restart, from before the last reset."""

    def read(self, device: int) -> Stats:
        return _merged(self._peaks.read(device), self.kept.get(device))

    def restart(self, device: int) -> None:
        self._peaks.keep(device, besides=self)
        self._peaks.reset(device)

    def close(self) -> None:
        self._peaks.views.remove(self)


class Peaks:
    """Of this process."""

    def __init__(self, torch: Any) -> None:
        self.read: Callable[[int], Stats] = torch._C._cuda_memoryStats
        self.reset: Callable[[int], None] = torch._C._cuda_resetPeakMemoryStats
        self._is_initialized: Callable[[], bool] = torch.cuda.is_initialized
        self._program = View(self)
        self.views = [self._program]
        for names, replaced in ((_READS, self._reading), (_RESETS, self._resetting)):
            for name in names:
                _replace(torch._C, name, replaced)
        self._has_extension = False

    def open(self) -> View:
        extension = sys.modules.get("ferro_alloc._C")
        if extension is not None and not self._has_extension:
            _replace(extension, "reset_peak", self._resetting)
            self._has_extension = True
        self.views.append(View(self))
        return self.views[-1]

    def keep(self, device: int, besides: View) -> None:
        """Keeps the peaks so far for the other views before a reset."""
        stats = self.read(device)
        besides.kept.pop(device, None)
        for view in self.views:
            if view is not besides:
                view.kept[device] = _merged(stats, view.kept.get(device))

    def _reading(self, original: Callable[[int], Stats]) -> Callable[[int], Stats]:
        return lambda device: _merged(original(device), self._program.kept.get(device))

    def _resetting(self, original: Callable[[int], None]) -> Callable[[int], None]:
        def reset(device: int) -> None:
            # The original raises an error for a program that has not used CUDA.
            if self._is_initialized():
                self.keep(device, besides=self._program)
            original(device)

        return reset


def _replace(module: Any, name: str, replaced: Callable[[Any], Any]) -> None:
    if (original := getattr(module, name, None)) is not None:
        setattr(module, name, replaced(original))


_found: Peaks | None = None


def open_view(torch: Any) -> View:
    global _found
    if _found is None:
        _found = Peaks(torch)
    return _found.open()


def _merged(stats: Stats, kept: Stats | None) -> Stats:
    """The statistics with the higher of both peaks."""
    if not kept:
        return stats
    found = {}
    for key, value in stats.items():
        other = kept.get(key)
        if isinstance(value, dict):
            found[key] = _merged(value, other)
        else:
            found[key] = max(value, other) if key == "peak" and other is not None else value
    return found
