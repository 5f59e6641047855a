"""Records a program's peaks, even if the program resets them, and the memory at each peak."""

from __future__ import annotations

import sys
import sysconfig
import threading
from array import array
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from ferro_alloc import _load, sim
from ferro_alloc._errors import FerroError
from ferro_alloc._import_hook import AfterImport
from ferro_alloc.fit._kinds import Kinds
from ferro_alloc.sim import _control

PEAKS = ("allocated_bytes.all.peak", "reserved_bytes.all.peak")
COUNTS = (
    *("allocation.all.allocated", "allocated_bytes.all.allocated"),
    *("segment.all.allocated", "num_alloc_retries"),
)
"""Counters of the whole run: allocations, the sum of their sizes, segments or mapped pages, and how
often the allocator emptied its cache to get memory."""
MOST_EVENTS = 1_000_000
"""Maximum number of events of each device in a report: the last ones."""
MOST_FAILURES = 8
"""Failed requests that are kept in full; later ones are only counted."""
# For one device: kind, file, line, function, node of autograd, bytes, blocks, tag.
Sum = tuple[str, str, int, str, str, int, int, str]


@dataclass(frozen=True)
class Failure:
    """A failed request, and the live memory at that moment. Sizes are in bytes."""

    device: int
    requested: int
    free: int
    reserved: int
    allocated: int
    limit: int | None
    """The program's own limit of reserved memory, if it set one."""
    file: str
    line: int
    sums: list[Sum]


class Recording:
    """The recording of this process, from the import of torch on. A process has at most one."""

    def __init__(self, for_report: bool = False) -> None:
        """`for_report`: with stacks and a history of events, which cost time and host memory."""
        self._entries = MOST_EVENTS if for_report else 1
        self._torch: Any = None
        self._extension: Any = None
        self._kinds: Kinds | None = None
        self._peaks: dict[tuple[int, str], int] = defaultdict(int)
        self._before_resets: dict[tuple[int, str], int] = defaultdict(int)
        self._counts: dict[tuple[int, str], int] = defaultdict(int)
        self._failures: dict[int, Failure] = {}
        self._failed_requests = 0
        self._in_backward: list[int] = []
        self.problem = ""
        """Why kinds and lines are unknown; empty if they are known."""
        self.snapshot: dict[str, Any] | None = None
        """PyTorch's snapshot at the end, for a report."""
        self.pools: dict[int, list[dict[str, Any]]] = {}
        """The memory of its pools."""
        self.driver_calls: dict[str, int] = {}
        """Calls of the driver until the end of the program, by function."""
        self.skipped: list[str] = []
        """Beginnings of the names of files outside the program."""

    def arm(self) -> None:
        AfterImport("torch", self._begin).arm()

    # ---- hooks

    def _begin(self, torch: ModuleType) -> None:
        self._torch = torch
        self.skipped = _not_the_programs(torch)
        _control.leave_shown_to_report()
        self._keep_peaks()
        torch.cuda._lazy_call(self._begin_cuda)
        try:
            self._extension = _load.load()
        except FerroError as error:
            self.problem = str(error)
            return
        self._kinds = Kinds(torch, self._extension.peak_declare)
        self._watch_backward()
        hooks: Any = sys.modules["torch.optim.optimizer"]
        hooks.register_optimizer_step_pre_hook(self._before_step)
        hooks.register_optimizer_step_post_hook(self._after_step)

    def _begin_cuda(self) -> None:
        self._torch._C._cuda_attach_out_of_memory_observer(self._see_failure)
        if self._extension is not None:
            self._extension.peak_start(self.skipped, self._say_all, self._entries)

    def _keep_peaks(self) -> None:
        """Makes each reset of the allocator's peaks or counters read them first."""
        c = self._torch._C
        peaks = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
        counts = ("_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats")
        for name in (*peaks, *counts):
            if original := getattr(c, name, None):

                def reset(
                    *arguments: Any, original: Any = original, of_counts: bool = name in counts
                ) -> Any:
                    self.read_statistics()
                    before = dict(self._counts)
                    found = original(*arguments)
                    if of_counts:
                        self._keep_counts(before)
                    return found

                setattr(c, name, reset)

    def _keep_counts(self, before: dict[tuple[int, str], int]) -> None:
        """Adds what a reset, of one device, took from the counters."""
        for device in self._devices():
            stats = self._torch.cuda.memory_stats(device)
            for name in COUNTS:
                key = (device, name)
                self._before_resets[key] = before[key] - stats.get(name, 0)

    def _devices(self) -> range:
        torch = self._torch
        used = torch is not None and torch.cuda.is_initialized()
        return range(torch.cuda.device_count() if used else 0)

    def read_statistics(self) -> None:
        """Reads peaks and counters of the present allocator."""
        for device in self._devices():
            stats = self._torch.cuda.memory_stats(device)
            for name in PEAKS:
                key = (device, name)
                self._peaks[key] = max(self._peaks[key], stats.get(name, 0))
            for name in COUNTS:
                key = (device, name)
                self._counts[key] = self._before_resets[key] + stats.get(name, 0)

    def _watch_backward(self) -> None:
        graph = self._torch.autograd.graph
        original = graph._engine_run_backward

        def run_backward(tensors: Any, *arguments: Any, **named: Any) -> Any:
            self._before_backward(tensors)
            thread = threading.get_ident()
            self._in_backward.append(thread)
            try:
                return original(tensors, *arguments, **named)
            finally:
                self._in_backward.remove(thread)
                self._say_all()
                self._extension.peak_begin_phase()

        graph._engine_run_backward = run_backward
        self._torch.autograd._engine_run_backward = run_backward

    def _before_backward(self, tensors: Any) -> None:
        assert self._kinds is not None
        near_peak = any(
            self._extension.peak_live_bytes(d) >= 0.8 * self._extension.peak_bytes(d) > 0
            for d in self._devices()
        )
        if near_peak:
            self._kinds.say_all(roots=tensors)
        self._extension.peak_begin_phase()

    def _before_step(self, optimizer: Any, *rest: Any) -> None:
        assert self._kinds is not None
        self._kinds.see_optimizer(optimizer)
        self._say_all()
        self._extension.peak_begin_phase()

    def _after_step(self, optimizer: Any, *rest: Any) -> None:
        self._say_all()
        self._extension.peak_begin_phase()

    def _say_all(self, insist: bool = False) -> None:
        if self._kinds is None or not self._torch.cuda.is_initialized():
            return
        # The program may have installed another allocator.
        self._extension.peak_follow()
        self._extension.peak_declare_libraries()
        self._kinds.say_all(insist=insist)

    def _see_failure(self, device: int, requested: int, total: int, free: int) -> None:
        number = self._failed_requests
        self._failed_requests += 1
        _control.note_failed_request(number)
        for recovered in self._failures.keys() & self.done_without.keys():
            del self._failures[recovered]
        if len(self._failures) >= MOST_FAILURES:
            return
        sums: list[Sum] = []
        if self._kinds is not None:
            self._extension.peak_declare_libraries()
            self._kinds.say_all(roots=self._kinds.roots(), insist=True)
            sums = self._extension.peak_sums(device, False)
        file, line = self._line_of_request()
        cuda = self._torch.cuda
        self._failures[number] = Failure(
            device=device,
            requested=requested,
            free=free,
            reserved=cuda.memory_reserved(device),
            allocated=cuda.memory_allocated(device),
            limit=self._limit(device, total),
            file=file,
            line=line,
            sums=sums,
        )

    def _line_of_request(self) -> tuple[str, int]:
        """The program's own line in which this thread is.

        A thread of autograd has none. It gets the line in which another thread waits for the
        backward pass, if only one does.
        """
        found = _own_line(self.skipped, sys._getframe())
        waiting = set(self._in_backward)
        if found[0] or len(waiting) != 1:
            return found
        return _own_line(self.skipped, sys._current_frames().get(waiting.pop()))

    def _limit(self, device: int, total: int) -> int | None:
        """`total` is the limit if there is one, or else the card's memory."""
        return total if total < sim.memory()[device].capacity else None

    # ---- results

    @property
    def done_without(self) -> dict[int, str]:
        """Failed requests of convolutions that took another engine of cuDNN, by number."""
        found = _control.done_without()
        return {number: operator for number, operator in found.items() if "conv" in operator}

    @property
    def failures(self) -> list[Failure]:
        """The failed requests that are kept, without those of `done_without`."""
        without = self.done_without
        return [self._failures[n] for n in sorted(self._failures) if n not in without]

    @property
    def failure_count(self) -> int:
        """The number of failed requests, without those of `done_without`."""
        return self._failed_requests - len(self.done_without)

    def finish(self) -> None:
        """Ends the recording. Call it while the program's objects still exist."""
        self.read_statistics()
        self.driver_calls = {name: count.calls for name, count in sim.counters().items()}
        self._say_all(insist=True)
        if self._entries > 1 and self._devices():
            from ferro_alloc.snapshots._report import pools_in_force

            self.snapshot = self._torch.cuda.memory._snapshot()
            self.pools = pools_in_force(self._torch)
        if self._extension is not None:
            self._extension.peak_stop()

    def peak(self, device: int, name: str) -> int:
        """Returns the peak of the whole run in bytes; `name` is one of `PEAKS`."""
        return self._peaks[device, name]

    def count(self, device: int, name: str) -> int:
        """Returns a counter of the whole run; `name` is one of `COUNTS`."""
        return self._counts[device, name]

    def sums(self, device: int) -> list[Sum]:
        """Sums of the blocks at the peak of requested memory; empty if they are unknown."""
        found: list[Sum] = [] if self._kinds is None else self._extension.peak_sums(device, True)
        return found

    def kinds_by_address(self, device: int) -> dict[int, list[str]]:
        """The kinds of the blocks that began at each address, in their order; for a report.

        Of the freed blocks, only the last `MOST_EVENTS` are known.
        """
        found: dict[int, list[str]] = defaultdict(list)
        if self._kinds is not None:
            names = self._extension.peak_kind_names()
            addresses, kinds = self._extension.peak_kinds(device)
            for address, kind in zip(array("Q", addresses), kinds, strict=True):
                found[address].append(names[kind])
        return found


def _not_the_programs(torch: Any) -> list[str]:
    """Beginnings of the names of files whose lines do not help the program's author."""
    package = str(Path(__file__).resolve().parents[1])
    generated = "/tmp/torchinductor"
    own = [f"{Path(torch.__file__).parent}/", f"{package}/", "<frozen ", "<string>", generated]
    # Packages that are installed for all programs are in a folder of the standard library.
    library = Path(sysconfig.get_path("stdlib"))
    parts = [each for each in library.iterdir() if not each.name.endswith("-packages")]
    return [*own, *(f"{each}/" if each.is_dir() else str(each) for each in parts)]


def _own_line(skipped: list[str], frame: FrameType | None) -> tuple[str, int]:
    while frame is not None:
        if not frame.f_code.co_filename.startswith(tuple(skipped)):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "", 0
