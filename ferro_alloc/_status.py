"""What `status()` tells, and how it is written for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ferro_alloc.config import Config

_GIB = 1 << 30


def gib(size: int) -> str:
    """Of bytes, as in `1.25 GiB`."""
    return f"{size / _GIB:.2f} GiB"


@dataclass(frozen=True)
class DeviceStatus:
    """What the allocator of one device holds, and what it did so far."""

    device: int
    layout: str
    """Of the settings; "segments" in any case on a device without virtual memory management."""
    allocated_bytes: int
    """Sizes of the blocks in use."""
    peak_allocated_bytes: int
    """The most that they came to since the last reset of peaks, or switch of allocators."""
    reserved_bytes: int
    """Memory taken from the driver and not given back."""
    peak_reserved_bytes: int
    page_bytes: int
    pages_held: int
    """Physical pages taken from the driver; times `page_bytes` they are the reserved memory."""
    pages_idle: int
    """Those of them that back no address at the moment."""
    pages_moved: int
    """How often a page moved to where its stream needed it, instead of a new one being taken."""
    pages_transferred: int
    """How often a page went to another stream without the host waiting: because its own had
    nothing to do, or behind the work of its own."""
    unmapped_by_requests: int
    """How many old mappings, of pages that had moved or left, requests removed."""
    unmaps_refused: int
    """How often the driver refused that or gave no answer; it was tried again."""
    ladder: Mapping[str, int]
    """How often each step ended the search of a request that found no free block."""
    ladder_ms: Mapping[str, float]
    """The host's time in each step, in milliseconds, whether it helped or not."""
    ladder_pages: Mapping[str, int]
    """How many pages moved or were transferred in each step, which is the reason."""
    driver_calls: Mapping[str, int]
    tags: Mapping[str, int]
    """Live bytes of each tag (`ferro_alloc.tag`), the largest first."""

    @property
    def ratio(self) -> float | None:
        """Reserved / allocated bytes; None while nothing is allocated."""
        return self.reserved_bytes / self.allocated_bytes if self.allocated_bytes else None

    @property
    def peak_ratio(self) -> float | None:
        """The same of the peaks, which need not be of one moment."""
        peak = self.peak_allocated_bytes
        return self.peak_reserved_bytes / peak if peak else None

    def __str__(self) -> str:
        calls = ", ".join(f"{name} {count:,}" for name, count in self.driver_calls.items() if count)
        tags = ", ".join(f"{name} {gib(size)}" for name, size in self.tags.items())
        pages = (
            "in segments"
            if self.layout == "segments"
            else f"{self.pages_held:,} pages of {self.page_bytes >> 20} MiB, "
            f"{self.pages_idle:,} idle, {self.pages_moved:,} moved, "
            f"{self.pages_transferred:,} transferred"
        )
        return (
            f"allocated {gib(self.allocated_bytes)} (peak {gib(self.peak_allocated_bytes)}), "
            f"reserved {gib(self.reserved_bytes)} (peak {gib(self.peak_reserved_bytes)}), "
            f"reserved / allocated {_ratio(self.ratio)} (of the peaks {_ratio(self.peak_ratio)}); "
            f"{pages}; driver calls: {calls or 'none'}{'; by tag: ' if tags else ''}{tags}"
        )


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


@dataclass(frozen=True)
class Status:
    """What is in force in this process. `str()` of it is a short text for people."""

    installed: bool
    """`install()` is in force: it was called, and not undone."""
    inactive: str
    """Why requests do not reach it all the same; empty where they do, or it is not installed."""
    torch_built: str | None
    """The torch the extension was compiled for; None when the extension is not built."""
    torch_running: str | None
    """The installed torch; None when there is none."""
    problem: str
    """Why the allocator cannot be installed here; empty when it can or is."""
    config: Config | None
    """The settings that were installed."""
    ignored: tuple[str, ...]
    """PyTorch's allocator settings without an effect under ferro_alloc, and settings of ferro_alloc
    that were removed, as `key:value`."""
    startup: str = ""
    """What FERRO_ALLOC does here; empty where it is off."""
    devices: tuple[DeviceStatus, ...] = ()
    """Of each device that the allocator has memory of its own for; empty until CUDA was used."""

    @property
    def active(self) -> bool:
        """PyTorch's requests are served from its memory now."""
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
