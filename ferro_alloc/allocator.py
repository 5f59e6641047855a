"""Turning the allocator on, and seeing that it is on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType

from ferro_alloc import _load
from ferro_alloc._alloc_conf import ignored_options
from ferro_alloc._errors import FerroError
from ferro_alloc.config import Config


@dataclass(frozen=True)
class DeviceStatus:
    """What the allocator of one device holds, and what it did so far."""

    device: int
    layout: str
    """Of the settings; "segments" in any case on a device without virtual memory management."""
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
    live_moves: int
    """How many handles the contents of live memory left, so that a request did not fail
    (`Config.move_live`)."""
    live_bytes_copied: int
    """Bytes that were copied for that."""
    live_pages_freed: int
    """Pages that this made free."""
    unmapped_by_requests: int
    """How many old mappings, of pages that had moved or left, requests removed."""
    unmapped_by_thread: int
    """The same by the allocator's own thread (`Config.background_unmap`)."""
    unmaps_refused: int
    """How often the driver refused that or gave no answer; it was tried again."""
    ladder: Mapping[str, int]
    """How often each step ended the search of a request that found no free block."""
    ladder_ms: Mapping[str, float]
    """The host's time in each step, in milliseconds, whether it helped or not."""
    ladder_pages: Mapping[str, int]
    """How many pages moved or were transferred in each step, which is the reason."""
    driver_calls: Mapping[str, int]

    def __str__(self) -> str:
        calls = ", ".join(f"{name} {count:,}" for name, count in self.driver_calls.items() if count)
        if self.layout == "segments":
            return f"in segments; driver calls: {calls or 'none'}"
        return (
            f"{self.pages_held:,} pages of {self.page_bytes >> 20} MiB, {self.pages_idle:,} idle, "
            f"{self.pages_moved:,} moved, {self.pages_transferred:,} transferred; "
            f"driver calls: {calls or 'none'}"
        )


@dataclass(frozen=True)
class Status:
    """What is in force in this process. `str()` of it is a short text for people."""

    installed: bool
    torch_built: str | None
    """The torch the extension was compiled for; None when the extension is not built."""
    torch_running: str | None
    """The installed torch; None when there is none."""
    problem: str
    """Why the allocator cannot be installed here; empty when it can or is."""
    config: Config | None
    """The settings that were installed."""
    ignored: tuple[str, ...]
    """PyTorch's allocator settings without an effect under ferro_alloc, as `key:value`."""
    devices: tuple[DeviceStatus, ...] = ()
    """Of each device that the allocator serves; empty until CUDA was used."""

    def __str__(self) -> str:
        lines = [f"ferro_alloc: {'installed' if self.installed else 'not installed'}"]
        lines.append(f"  torch     running {self.torch_running}, built for {self.torch_built}")
        if self.problem:
            lines.append(f"  problem   {self.problem}")
        if self.config is not None:
            lines.append(f"  settings  {self.config}")
        if self.ignored:
            lines.append(f"  ignored   {', '.join(self.ignored)}")
        for device in self.devices:
            lines.append(f"  device {device.device}  {device}")
            if self.config is not None and device.layout != self.config.layout:
                lines.append("            it has no virtual memory management, which pages need")
        return "\n".join(lines)


_lock = threading.Lock()
_installed_config: Config | None = None
on_install: Callable[[], None] | None = None
"""Called first by every `install()`, whatever comes of it. Set before the program starts."""


def install(config: Config | None = None) -> None:
    """Makes ferro_alloc the allocator of all CUDA memory that PyTorch takes from now on.

    At any time but during the capture of a CUDA graph: tensors, graphs and pools that exist live
    on, and their memory stays with the allocator that they came from. The earlier, the more memory
    it can share. Without `config` the settings come from FERRO_ALLOC_CONF. Installing again with
    the same settings does nothing.

    Raises `FerroError`, and changes nothing, where that is impossible: no driver, another torch
    than the one it was built for, a capture, other settings than those in force, or cudagraph trees
    of torch.compile that hold memory. Thread-safe. Does not initialise CUDA.
    """
    global _installed_config
    # Whoever calls this has decided for FERRO_ALLOC too.
    if on_install is not None:
        on_install()
    wanted = Config.from_env() if config is None else config
    with _lock:
        if _installed_config is not None:
            if config is not None and wanted != _installed_config:
                raise FerroError(
                    f"ferro_alloc is installed with {_installed_config} already: its settings "
                    "cannot change in a running process"
                )
            return
        extension = _load.load()
        problem = extension.driver_problem()
        if problem:
            raise FerroError(f"ferro_alloc cannot be installed on this machine: {problem}")
        if not extension.is_in_place():
            _refuse_cudagraph_trees()
        import torch

        try:
            extension.install(
                wanted.page_size_bytes,
                wanted.memory_limit_bytes,
                wanted.in_flight_percent,
                wanted.headroom_bytes,
                wanted.idle_bytes,
                wanted.layout,
                wanted.background_unmap,
                wanted.move_live,
            )
        except torch.AcceleratorError:
            raise
        except RuntimeError as error:
            raise FerroError(str(error)) from error
        _installed_config = wanted


def uninstall() -> None:
    """Makes the allocator before ferro_alloc that of all CUDA memory taken from now on.

    Tensors, graphs and pools made in between live on: ferro_alloc keeps their memory, frees it when
    they die, and goes on serving the pools that were made in it. `install()` may be called again.
    Does nothing when it is not installed. Raises `FerroError`, and changes nothing, during the
    capture of a CUDA graph. Thread-safe.
    """
    global _installed_config
    with _lock:
        if _installed_config is None:
            return
        import torch

        try:
            _load.load().uninstall()
        except torch.AcceleratorError:
            raise
        except RuntimeError as error:
            raise FerroError(str(error)) from error
        _installed_config = None


def _refuse_cudagraph_trees() -> None:
    """They take their tensors' deleter to be that of the allocator in place."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    containers = getattr(getattr(trees, "local", None), "tree_manager_containers", {})
    if any(container.tree_manager is not None for container in containers.values()):
        raise FerroError(
            "torch.compile holds CUDA graphs whose memory came from the allocator before "
            "ferro_alloc: call torch.compiler.reset() first, or install before they are made"
        )


def is_installed() -> bool:
    """Whether PyTorch takes its CUDA memory through ferro_alloc now. Imports no torch."""
    return _installed_config is not None and bool(_load.load().is_installed())


def settings() -> Config | None:
    """Those that were installed; None while ferro_alloc is not."""
    return _installed_config


def status() -> Status:
    """What is in force in this process; never raises because something is missing."""
    built: str | None = None
    running: str | None = None
    problem = ""
    devices: tuple[DeviceStatus, ...] = ()
    try:
        running = _load.running_torch()[0]
        built = _load.built_for()[0]
        extension = _load.load()
        problem = extension.driver_problem()
        if is_installed():
            devices = _devices(extension)
    except FerroError as error:
        problem = str(error)
    layout = "pages" if _installed_config is None else _installed_config.layout
    return Status(
        installed=is_installed(),
        torch_built=built,
        torch_running=running,
        problem=problem,
        config=_installed_config,
        ignored=ignored_options(layout=layout),
        devices=devices,
    )


def _devices(extension: ModuleType) -> tuple[DeviceStatus, ...]:
    import torch

    # Asking for their number would initialise CUDA in a program that has not done so yet.
    count = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    return tuple(DeviceStatus(index, **extension.device_report(index)) for index in range(count))
