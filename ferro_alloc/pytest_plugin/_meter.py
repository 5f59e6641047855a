"""Measures the GPU memory of one test, with the statistics of any allocator."""

from __future__ import annotations

import gc
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ferro_alloc._own_lines import NO_LINE
from ferro_alloc.pytest_plugin._peaks import Stats, View, open_view
from ferro_alloc.pytest_plugin._text import size_text

NO_GPU = "no NVIDIA GPU on this machine (--ferro-simulate=h100 simulates one)"
NO_TORCH = "torch cannot be imported"
BEFORE_THE_TEST = "(allocated before the test)"
BEFORE_THE_HISTORY = "(allocated before the first event of the history)"
MOST_LINES = 10
Block = tuple[int, int, int]
"""Device, address and size."""
_ENTRIES = 1_000_000
_COUNTED: dict[str, Callable[[Stats], int]] = {
    "allocations": lambda stats: stats["allocation"]["all"]["allocated"],
    "driver_calls": lambda stats: stats["num_device_alloc"] + stats["num_device_free"],
}


class GpuMemory:
    """The GPU memory of a test, from the setup of its fixtures until now; from the request, if the
    test requested the fixture while it ran. Numbers of the program's allocator, native or
    ferro_alloc. Of several devices the peaks are those of the one with the highest; counts are
    sums."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    @property
    def peak_allocated_bytes(self) -> int:
        """Highest number of bytes in use, with memory from before the test."""
        return self._meter.peak("allocated_bytes")

    @property
    def peak_reserved_bytes(self) -> int:
        """Highest number of bytes held by the allocator, with its cache from before the test."""
        return self._meter.peak("reserved_bytes")

    @property
    def allocations(self) -> int:
        """Number of requests."""
        return self._meter.count("allocations")

    @property
    def driver_calls(self) -> int:
        """Number of calls that took memory from the driver or returned it."""
        return self._meter.count("driver_calls")


class Meter:
    """Begins when it is created."""

    def __init__(
        self, peaks: bool, traced: bool, leaks: bool, required: bool, wider: set[Block]
    ) -> None:
        """`wider` has the blocks of fixtures of wider scope, of all tests."""
        self.problem = ""
        self._wider = wider
        self._torch: Any = sys.modules.get("torch")
        self._recorded = False
        self._measures = False
        self._view: View | None = None
        self._leaks = leaks
        self._started: list[Stats] = []
        self._live: dict[Block, str] = {}
        if required and self._torch is None:
            try:
                import torch
            except ImportError:
                self.problem = NO_TORCH
                return
            self._torch = torch
        if required and not self._torch.cuda.is_available():
            self.problem = NO_GPU
            return
        if traced or leaks:
            if self._is_used():
                self._record(traced)
            else:
                # Programs that fork after this keep CUDA uninitialised.
                self._torch.cuda._lazy_call(lambda: self._record(traced))
        if leaks and self._is_used():
            self._live = self._blocks()
            self._wider.intersection_update(self._live)
        if peaks:
            self.begin_peaks()

    def begin_peaks(self) -> None:
        """Measures from now on, if it has not begun."""
        if self.problem or self._measures:
            return
        self._measures = True
        if self._torch is not None:
            self._view = open_view(self._torch)
        if self._view is not None and self._is_used():
            for device in self._devices():
                self._view.restart(device)
            self._started = self._stats()

    @property
    def has_peaks(self) -> bool:
        return self._measures and self._is_used()

    def peak(self, kind: str) -> int:
        return max((stats[kind]["all"]["peak"] for stats in self._stats()), default=0)

    def count(self, kind: str) -> int:
        read = _COUNTED[kind]
        return sum(map(read, self._stats())) - sum(map(read, self._started))

    def properties(self) -> dict[str, int]:
        return {
            "peak_allocated_bytes": self.peak("allocated_bytes"),
            "peak_reserved_bytes": self.peak("reserved_bytes"),
            "allocations": self.count("allocations"),
            "driver_calls": self.count("driver_calls"),
        }

    def holders_at_peak(self) -> list[str]:
        """The lines of code that held the memory when most of it was in use."""
        from ferro_alloc.snapshots import _trace

        snapshot = self._torch.cuda.memory._snapshot()
        found: list[tuple[int, defaultdict[str, list[int]]]] = []
        for device in _trace.devices(snapshot):
            trace = _trace.read(snapshot, device)
            is_whole = self._recorded and trace.events < _ENTRIES
            before = BEFORE_THE_TEST if is_whole else BEFORE_THE_HISTORY
            allocated = trace.allocated()
            peak = max(range(len(allocated)), key=allocated.__getitem__)
            held: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
            blocks = trace.blocks
            for index, born in enumerate(blocks.born):
                if born <= peak < blocks.requested[index]:
                    line = trace.stacks.lines[blocks.stack[index]]
                    # Blocks from before the history have no stack.
                    entry = held[before if born < 0 and line == NO_LINE else line]
                    entry[0] += blocks.size[index]
                    entry[1] += 1
            found.append((allocated[peak], held))
        return _lines(max(found, key=lambda each: each[0])[1]) if found else []

    @contextmanager
    def wider_fixture(self) -> Iterator[None]:
        """Memory that a fixture of wider scope takes meanwhile is no leak of a test."""
        counts = not self.problem and self._leaks
        before = self._blocks() if counts and self._is_used() else {}
        yield
        if counts and self._is_used():
            self._wider |= self._blocks().keys() - before.keys()

    def leaked(self) -> tuple[int, list[str]]:
        """The bytes by which live memory grew since the test began, and the lines of code that
        requested the blocks that are new."""
        if self.problem or not self._is_used():
            return 0, []
        gc.collect()
        found = self._blocks()
        grown = self._own(found) - self._own(self._live)
        held: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        for block in found.keys() - self._live.keys() - self._wider:
            entry = held[found[block]]
            entry[0] += block[2]
            entry[1] += 1
        return grown, _lines(held)

    def _own(self, blocks: dict[Block, str]) -> int:
        return sum(block[2] for block in blocks if block not in self._wider)

    def end(self) -> None:
        if self._view is not None:
            self._view.close()
        if self._recorded and self._is_used():
            self._torch.cuda.memory._record_memory_history(enabled=None)

    def _is_used(self) -> bool:
        if self._torch is None:
            self._torch = sys.modules.get("torch")
        cuda = getattr(self._torch, "cuda", None)
        return cuda is not None and cuda.is_initialized()

    def _record(self, traced: bool) -> None:
        """A history that the program records stays as it is."""
        if not self._torch._C._cuda_isHistoryEnabled():
            self._torch.cuda.memory._record_memory_history(
                context="alloc" if traced else "state",
                stacks="python",
                max_entries=_ENTRIES if traced else 1,
            )
            self._recorded = True

    def _devices(self) -> range:
        return range(self._torch.cuda.device_count())

    def _stats(self) -> list[Stats]:
        if not self.has_peaks:
            return []
        if self._view is None:
            # The test imported torch, so its peaks are those of the process.
            self._view = open_view(self._torch)
        return [self._view.read(device) for device in self._devices()]

    def _blocks(self) -> dict[Block, str]:
        """The lines of code that requested the live blocks, without workspaces of cuBLAS, which
        stay until the end."""
        from ferro_alloc._segments import segments
        from ferro_alloc.snapshots._stacks import line_of

        self._torch._C._cuda_clearCublasWorkspaces()
        return {
            (segment["device"], block["address"], block["size"]): line_of(block.get("frames", ()))
            for segment in segments()
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        }


def _lines(held: defaultdict[str, list[int]]) -> list[str]:
    ordered = sorted(held.items(), key=lambda each: -each[1][0])
    lines = [
        f"  {size_text(size)} in {blocks:,} block{'' if blocks == 1 else 's'}: {line}"
        for line, (size, blocks) in ordered[:MOST_LINES]
    ]
    if len(ordered) > MOST_LINES:
        rest = sum(size for _, (size, _) in ordered[MOST_LINES:])
        lines.append(f"  {size_text(rest)} in {len(ordered) - MOST_LINES} more lines")
    return lines
