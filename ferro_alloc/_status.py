"""The result of `status()`, and its text form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ferro_alloc.config import Config

_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20))


def size_text(size: int, least: float = 0.1) -> str:
    """Formats bytes, as in `1.25 GiB`, in the largest unit of which they are at least `least`: so
    two figures remain."""
    for name, unit in _UNITS:
        if round(abs(size) / unit, 2) >= least:
            return f"{size / unit:.2f} {name}"
    return f"{size} B" if abs(size) < 1 << 10 else f"{size / (1 << 10):.2f} KiB"


@dataclass(frozen=True)
class DeviceStatus:
    """The memory that the allocator of one device holds, and its work so far."""

    device: int
    layout: str
    """As in the settings; always "segments" on a device without virtual memory management."""
    allocated_bytes: int
    """Sizes of the blocks in use."""
    peak_allocated_bytes: int
    """The maximum of `allocated_bytes` since the last reset of peaks, or switch of allocators."""
    reserved_bytes: int
    """Memory taken from the driver and not returned."""
    peak_reserved_bytes: int
    page_bytes: int
    pages_held: int
    """Physical pages taken from the driver; times `page_bytes` they are the reserved memory."""
    pages_idle: int
    """Held pages that currently back no address."""
    stranded: Mapping[int, int]
    """Free bytes beside live ones, by the pages of the handle on which both lie. A handle with a
    live byte stays in place, so these bytes serve only requests that fit between its live ones."""
    asleep_bytes: int
    """Device memory that `wake()` would take for what is asleep; not a part of the reserved."""
    saved_host_bytes: int
    """Contents of it that wait in host memory."""
    pages_moved: int
    """How often a page moved to another place in its arena, instead of a new page."""
    pages_transferred: int
    """How often a page went to another stream without a wait of the host: its own stream had no
    work left, or the other stream waits for that work."""
    unmapped_by_requests: int
    """How many old mappings, of pages that had moved or left, were removed by requests."""
    unmaps_refused: int
    """How often the driver refused that or did not answer; it was tried again."""
    ladder: Mapping[str, int]
    """How often each step served a request that found no free block."""
    ladder_ms: Mapping[str, float]
    """The host's time in each step, in milliseconds, whether or not it served the request."""
    ladder_pages: Mapping[str, int]
    """How many pages each step moved or transferred."""
    driver_calls: Mapping[str, int]
    tags: Mapping[str, int]
    """Live bytes of each tag (`ferro_alloc.tag`), the largest first."""

    @property
    def ratio(self) -> float | None:
        """Reserved / allocated bytes; None while nothing is allocated."""
        return self.reserved_bytes / self.allocated_bytes if self.allocated_bytes else None

    @property
    def peak_ratio(self) -> float | None:
        """The same ratio of the peaks, which may be from different moments."""
        peak = self.peak_allocated_bytes
        return self.peak_reserved_bytes / peak if peak else None

    def __str__(self) -> str:
        calls = ", ".join(f"{name} {count:,}" for name, count in self.driver_calls.items() if count)
        tags = ", ".join(f"{name} {size_text(size)}" for name, size in self.tags.items())
        stranded = ", ".join(
            f"{size_text(size)} on handles of {pages} page{'s' * (pages > 1)}"
            for pages, size in self.stranded.items()
        )
        asleep = (
            f"asleep {size_text(self.asleep_bytes)}, "
            f"{size_text(self.saved_host_bytes)} of it on the host; "
            if self.asleep_bytes
            else ""
        )
        pages = (
            "in segments"
            if self.layout == "segments"
            else f"{self.pages_held:,} pages of {self.page_bytes >> 20} MiB, "
            f"{self.pages_idle:,} idle, {self.pages_moved:,} moved, "
            f"{self.pages_transferred:,} transferred"
        )
        return (
            f"allocated {size_text(self.allocated_bytes)} "
            f"(peak {size_text(self.peak_allocated_bytes)}), "
            f"reserved {size_text(self.reserved_bytes)} "
            f"(peak {size_text(self.peak_reserved_bytes)}), "
            f"reserved / allocated {_ratio(self.ratio)} (of the peaks {_ratio(self.peak_ratio)}); "
            f"{asleep}{pages}; beside live bytes: {stranded or 'none'}; "
            f"driver calls: {calls or 'none'}{'; by tag: ' if tags else ''}{tags}"
        )


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


@dataclass(frozen=True)
class Status:
    """What is in force in this process. `str()` returns it as text."""

    installed: bool
    """Whether `install()` was called and not undone."""
    inactive: str
    """Why requests do not reach it although it is installed; empty otherwise."""
    torch_built: str | None
    """The torch for which the extension was compiled; None if the extension is not built."""
    torch_running: str | None
    """The installed torch; None without one."""
    problem: str
    """Why the allocator cannot be installed here; empty if it can be or is installed."""
    config: Config | None
    """The settings that were installed."""
    ignored: tuple[str, ...]
    """PyTorch's allocator settings without an effect under ferro_alloc, and settings of ferro_alloc
    that were removed, as `key:value`."""
    startup: str = ""
    """The effect of FERRO_ALLOC here; empty if it is off."""
    devices: tuple[DeviceStatus, ...] = ()
    """An entry for each device that the allocator serves; empty until CUDA was used."""

    @property
    def active(self) -> bool:
        """Whether it serves PyTorch's requests now."""
        return self.installed and not self.inactive

    def __str__(self) -> str:
        lines = ["ferro_alloc: not installed"]
        if self.installed:
            state = f"not active: {self.inactive}" if self.inactive else "active"
            lines = [f"ferro_alloc: installed, {state}"]
        lines.append(f"  torch     running {self.torch_running}, built for {self.torch_built}")
        if self.problem:
            lines.append(f"  problem   {self.problem}")
        if self.startup:
            lines.append(f"  startup   {self.startup}")
        if self.config is not None:
            lines.append(f"  settings  {self.config}")
        if self.ignored:
            lines.append(f"  ignored   {', '.join(self.ignored)}")
        for device in self.devices:
            lines.append(f"  device {device.device}  {device}")
            if self.config is not None and device.layout != self.config.layout:
                lines.append("            it has no virtual memory management, which pages need")
        return "\n".join(lines)
