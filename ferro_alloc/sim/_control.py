"""Instruments of the active simulated GPU. Each raises `FerroError` without one."""

from __future__ import annotations

import ctypes
import json
import sys
from dataclasses import dataclass
from typing import Any

from ferro_alloc._errors import FerroError
from ferro_alloc.sim import _activate, _library

OUT_OF_MEMORY = 2


@dataclass(frozen=True)
class CallCount:
    """Calls of one driver function since the start or the last reset."""

    calls: int = 0
    failures: int = 0
    bytes: int = 0
    # The time of the calls on an H100, by measured medians; 0 if unknown.
    microseconds: float = 0.0


@dataclass(frozen=True)
class DeviceMemory:
    """Physical memory of one device in bytes, including its context; `peak` is of its whole
    life."""

    capacity: int
    allocated: int
    peak: int

    @property
    def margin(self) -> int:
        return self.capacity - self.peak


@dataclass(frozen=True)
class UncomputedRead:
    """A place of the program that read values which the simulated GPU did not compute."""

    place: str
    """As in "train.py:12". In a backward pass it is the line that started it, with autograd's node,
    as in "train.py:12 (MulBackward0)". Empty if no line of Python made the call."""
    operator: str
    count: int
    learned: str = "float"
    """What the program learned: "float" for floating-point numbers, and for integers or booleans
    that it only shows; "integer" for other integers and booleans; "size" for the size of a result;
    and "drawn" for integers, booleans, sizes or numbers that decide something, if they follow from
    drawn choices, random numbers that are not a card's, and known values alone."""
    last: int = 0
    """The number of its last read, counted over all places from 1."""
    reached: str = ""
    """The condition, index or size in the program's source that a number of it reaches, as in
    "the condition at train.py:8"; of a floating-point number also its conversion to an integer.
    Empty if there is none."""
    rows: str = ""
    """Of sizes: "fewest" or "most", if all of them were the smallest or the largest possible ones,
    and "zeros" for others, which zeros gave; empty if only one size was possible. Of integers and
    booleans that follow from masks of unknown numbers: "fewest" if all were zeros, else "zeros"."""
    drawn: bool = False
    """Whether it follows from drawn choices, random numbers that are not a card's, and known values
    alone."""
    also_reached: tuple[str, ...] = ()
    """What else it reaches, as far as a short search tells, up to 19."""

    @property
    def decides(self) -> bool:
        """Whether the program may have taken another way by it: all but floating-point numbers that
        reach nothing."""
        return self.learned != "float" or bool(self.reached)


@dataclass(frozen=True)
class LibraryFailure:
    """A library of NVIDIA that refused an operator, with the first line of its message."""

    library: str
    operator: str
    message: str
    place: str = ""
    """The line of the program, as of an `UncomputedRead`."""
    count: int = 0
    """How often the program got the error from PyTorch."""


@dataclass(frozen=True)
class Clock:
    """Virtual time in seconds: of the host, and how much of it each device had work."""

    host: float
    busy: tuple[float, ...]


def counters() -> dict[str, CallCount]:
    """By exported symbol, as in "cuMemAlloc_v2"; functions that were not called are absent."""
    counts = json.loads(_library.text_of(_driver().ferro_sim_counters))
    return {name: CallCount(**count) for name, count in counts.items()}


def reset_counters() -> None:
    _driver().ferro_sim_reset_counters()


def fault(
    function: str,
    *,
    call: int | None = None,
    after: int | None = None,
    at_least: int | None = None,
    result: int = OUT_OF_MEMORY,
) -> None:
    """Makes calls of a driver function fail with a CUresult, until `clear_faults()`.

    `call`: the call with this number, counted from now, starting with 1. `after`: all calls after
    the first `after` ones. `at_least`: all calls for at least this many bytes. Exactly one of the
    three must be given. A version suffix of the function may be omitted.
    """
    given = [
        (when, value)
        for when, value in (("call", call), ("after", after), ("bytes", at_least))
        if value is not None
    ]
    if len(given) != 1:
        raise FerroError("a fault needs exactly one of call, after and at_least")
    driver = _driver()
    when, value = given[0]
    if driver.ferro_sim_add_fault(function.encode(), when.encode(), value, result) != 0:
        raise FerroError(driver.ferro_sim_last_error().decode())


def clear_faults() -> None:
    _driver().ferro_sim_clear_faults()


def drain() -> None:
    """Performs all queued work, on all devices."""
    _driver().ferro_sim_drain()


def pending() -> int:
    """Returns the number of queued operations that are not done."""
    return int(_driver().ferro_sim_pending())


def memory() -> tuple[DeviceMemory, ...]:
    """Memory of each device, in their order."""
    return tuple(
        DeviceMemory(
            capacity=device["total_bytes"],
            allocated=device["allocated_bytes"],
            peak=device["peak_bytes"],
        )
        for device in report()["devices"]
    )


def report(ranges: bool = False) -> dict[str, Any]:
    """Reports everything that the machine holds; with `ranges` also every mapped range."""
    driver = _driver()
    found: dict[str, Any] = json.loads(
        _library.text_of(lambda buffer, size: driver.ferro_sim_report(int(ranges), buffer, size))
    )
    return found


def clock() -> Clock:
    """Returns the time in mode "clock", from 0 at the start. Raises `FerroError` in other modes."""
    found = report()
    if not _activate.has_clock():
        raise FerroError('the simulated GPU has no clock: activate it with mode="clock"')
    return Clock(
        host=found["host_ns"] / 1e9,
        busy=tuple(device["busy_ns"] / 1e9 for device in found["devices"]),
    )


def unsupported() -> tuple[str, ...]:
    """CUDA functions that were called and are not simulated, in the order of their first calls."""
    driver = _driver()
    count = driver.ferro_sim_unsupported_count()
    return tuple(driver.ferro_sim_unsupported_name(i).decode() for i in range(count))


def kernels() -> tuple[str, ...]:
    """Kernels that were launched outside of PyTorch's operators, by name; they did nothing."""
    return tuple(_library.text_of(_driver().ferro_sim_kernels).splitlines())


def kernel_places() -> dict[str, str]:
    """The line that first launched each of these kernels, as in "train.py:12", by name; without
    those that no line of Python launched."""
    _driver()
    values = sys.modules.get("ferro_alloc.sim._values")
    return {} if values is None else {name: place for name, place in values.kernels() if place}


def uncomputed_reads() -> tuple[UncomputedRead, ...]:
    """In the order of their first occurrence; empty before torch is imported."""
    _driver()
    values = sys.modules.get("ferro_alloc.sim._values")
    return () if values is None else tuple(_read(*read) for read in values.reads())


def _read(
    place: str,
    operator: str,
    count: int,
    learned: str,
    last: int,
    reached: list[str],
    rows: str,
    drawn: bool,
) -> UncomputedRead:
    first, *others = reached or [""]
    return UncomputedRead(place, operator, count, learned, last, first, rows, drawn, tuple(others))


def library_failures() -> tuple[LibraryFailure, ...]:
    """One for each library, operator and place; empty before torch is imported."""
    return tuple(each for each in _failures() if not _lacked_memory(each))


def library_shortages() -> tuple[LibraryFailure, ...]:
    """The same of libraries that could not take memory of the card for themselves."""
    return tuple(each for each in _failures() if each.count and _lacked_memory(each))


def _failures() -> tuple[LibraryFailure, ...]:
    _driver()
    values = sys.modules.get("ferro_alloc.sim._values")
    return () if values is None else tuple(LibraryFailure(*one) for one in values.failures())


def _lacked_memory(failure: LibraryFailure) -> bool:
    return "ALLOC_FAILED" in failure.message


def has_benchmarked() -> bool:
    """Whether convolutions of cuDNN ran while `torch.backends.cudnn.benchmark` was true."""
    values = sys.modules.get("ferro_alloc.sim._values")
    return values is not None and bool(values.has_benchmarked())


def derived_workspaces() -> int:
    """How many calls of cuDNN, cuFFT, cuSPARSE and cuSOLVER, on tensors of 1 MiB and more, got a
    workspace that follows from those of similar ones, because theirs was not measured on a GPU."""
    _driver()
    # The libraries are loaded for all.
    return int(ctypes.CDLL(None).ferro_sim_derived_workspaces())


def leave_shown_to_report() -> None:
    """From now on, uncomputed floating-point numbers that decide nothing cause no warning when the
    program reads them, and printed tensors neither: the caller reports them at the end."""
    if values := sys.modules.get("ferro_alloc.sim._values"):
        values.leave_shown_to_report()


def note_failed_request(number: int) -> None:
    """Tells that the allocator's request of this number has failed in the calling thread."""
    if values := sys.modules.get("ferro_alloc.sim._values"):
        values.note_failed_request(number)


def done_without() -> dict[int, str]:
    """The numbers of failed requests whose operator ended without an error, and the operator."""
    values = sys.modules.get("ferro_alloc.sim._values")
    return {} if values is None else dict(values.done_without())


def _driver() -> ctypes.CDLL:
    if not _activate.is_active():
        raise FerroError("no simulated GPU is active: call ferro_alloc.sim.activate() first")
    return _library.load()
