"""The interface of the package torch_memory_saver, on memory of ferro_alloc.

    from ferro_alloc.memory_saver import torch_memory_saver

    with torch_memory_saver.region(tag="weights", enable_cpu_backup=True):
        model = build()
    torch_memory_saver.pause("weights")
    torch_memory_saver.resume("weights")

Programs change their import of `torch_memory_saver` and need neither its package nor LD_PRELOAD;
`install()`, or FERRO_ALLOC=1, must come before the first region.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

from ferro_alloc import _load, _regions, _sleep, _tags, _variable, allocator
from ferro_alloc._errors import FerroError
from ferro_alloc._segments import segments

if TYPE_CHECKING:
    import torch

__all__ = ["TorchMemorySaver", "configure_subprocess", "torch_memory_saver"]

_log = logging.getLogger("ferro_alloc")
_DEFAULT = "default"
_DISABLED = "memory saver disabled"
_WHOLE = "TMS_INIT_ENABLE"
_WHOLE_KEPT = "TMS_INIT_ENABLE_CPU_BACKUP"


class TorchMemorySaver:
    """Memory of regions, which `pause()` returns to the driver and `resume()` takes again.

    Addresses stay. Contents stay if the region has `enable_cpu_backup`; else they are undefined
    after `resume()`. Thread-safe. Memory of a region is what its thread requests inside it; with
    TMS_INIT_ENABLE=1 in the environment it is all memory of the process, without
    `ferro_alloc.tag()`, but that of `disable()`, and TMS_INIT_ENABLE_CPU_BACKUP=1 keeps its
    contents.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._regions = _regions.Regions()
        self._names: dict[tuple[str, bool], str] = {}
        self._margin = 0

    @contextmanager
    def region(
        self,
        tag: str = _DEFAULT,
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: Literal["mmap", "pinned"] | None = None,
    ) -> Iterator[None]:
        """Memory that this thread requests inside it belongs to `tag`. Regions nest.

        Each tag has pages of its own on each device, and is a `ferro_alloc.tag`. The innermost
        region or `ferro_alloc.tag` counts; what has another tag stays awake. Contents are kept in
        page-locked host memory where the system allows it, whatever `cpu_backup_backend` is.

        Raises `FerroError` if ferro_alloc does not serve the current device from pages, and for
        `enable_disk_backup`; `ValueError` for a `cpu_backup_backend` without `enable_cpu_backup`.
        """
        _check_backup(enable_cpu_backup, enable_disk_backup, cpu_backup_backend)
        name = self._name_of(tag, enable_cpu_backup)
        with self._regions.enter(name, "torch_memory_saver.region()"):
            yield

    @contextmanager
    def cuda_graph(
        self,
        cuda_graph: torch.cuda.CUDAGraph,
        pool: Any = None,
        stream: torch.cuda.Stream | None = None,
        capture_error_mode: str = "global",
        tag: str = _DEFAULT,
        enable_cpu_backup: bool = False,
        cpu_backup_backend: Literal["mmap", "pinned"] | None = None,
    ) -> Iterator[None]:
        """`torch.cuda.graph`, with memory that belongs to `tag`.

        What the graph keeps sleeps with its tag, and its scratch with all that is in use of its
        pool. While it sleeps, replays raise `FerroError`. Raises as `region()` does, and if graphs
        get no pages (`graph_layout`).
        """
        import torch

        call = "torch_memory_saver.cuda_graph()"
        _check_backup(enable_cpu_backup, False, cpu_backup_backend)
        _regions.require_pages(call, torch.cuda.current_device())
        settings = allocator.settings()
        if settings is not None and settings.graph_layout == "segments":
            raise FerroError(
                f"{call} needs pages for graphs, and graph_layout is 'segments', whose memory "
                "cannot sleep: capture with torch.cuda.graph, or install without that setting"
            )
        name = self._name_of(tag, enable_cpu_backup)
        with (
            torch.cuda.graph(
                cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode
            ),
            _tags.tag(name),
        ):
            yield

    @contextmanager
    def disable(self, dispose_mem_pool_after_use: bool = True) -> Iterator[None]:
        """Memory that this thread requests inside it belongs to no region, and is never paused.

        It has pages of its own, which are free for other memory when it is freed. May be used
        outside of regions too. Raises `FerroError` for `dispose_mem_pool_after_use=False`.
        """
        if not dispose_mem_pool_after_use:
            raise FerroError(
                "torch_memory_saver.disable(dispose_mem_pool_after_use=False) is not supported: "
                "leave the argument out"
            )
        _regions.require_installed("torch_memory_saver.disable()")
        with self._regions.leave(_DISABLED):
            yield

    def pause(self, tag: str | None = None) -> None:
        """Returns the memory of `tag`, or of all regions, to the driver.

        What is paused already stays so, and an unknown tag has no memory. Until `resume()` nothing
        may use the memory (`ferro_alloc.sleep`), but it may be freed, and regions of the tag may be
        entered: their new memory is awake. Memory that cannot sleep stays, and a warning is logged.
        Raises `FerroError` if ferro_alloc is not installed or the tag is no string, and
        `RuntimeError`, during a capture or if the host lacks memory for the contents: a part may be
        paused then.
        """
        call = f"torch_memory_saver.pause({'' if not tag else repr(tag)})"
        _regions.require_installed(call)
        _check_tag(tag or _DEFAULT)
        is_whole = _is_whole_process(tag)
        kept, dropped = (self._names_of(None if is_whole else tag, kept) for kept in (True, False))
        self._regions.give_up_pools([*kept, *dropped])
        if is_whole:
            self._pause_process(call, kept, dropped)
        else:
            _regions.sleep(call, kept, dropped)

    def resume(self, tag: str | None = None) -> None:
        """Takes memory for what `pause()` returned, at the same addresses; the contents are back.

        Does nothing for memory that is awake. Raises `FerroError` as `pause()` does,
        `torch.OutOfMemoryError`, and the memory of that device stays paused, if it lacks memory,
        and `RuntimeError` during a capture.
        """
        _regions.require_installed("torch_memory_saver.resume()")
        _check_tag(tag or _DEFAULT)
        if _is_whole_process(tag):
            _sleep.wake()
            return
        names = [*self._names_of(tag, True), *self._names_of(tag, False)]
        if names:
            _sleep.wake(names)

    @property
    def enabled(self) -> bool:
        """Whether ferro_alloc is installed."""
        return allocator.is_installed()

    @property
    def hook_mode(self) -> str:
        """Always "ferro_alloc". Setting "preload" or "torch", as for the package, has no effect."""
        return "ferro_alloc"

    @hook_mode.setter
    def hook_mode(self, value: str) -> None:
        if value not in ("preload", "torch", "ferro_alloc"):
            raise FerroError(
                f"torch_memory_saver.hook_mode is {value!r}: expected 'preload' or 'torch'; "
                "neither has an effect"
            )

    @property
    def memory_margin_bytes(self) -> int:
        """Has no effect: `Config.headroom_mb` keeps memory free for other programs."""
        return self._margin

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        settings = allocator.settings()
        if value > (0 if settings is None else settings.headroom_bytes):
            _log.warning(
                "torch_memory_saver.memory_margin_bytes=%d has no effect: set headroom_mb:%d in "
                "FERRO_ALLOC_CONF to keep that memory free",
                value,
                -(-value // 2**20),
            )
        self._margin = value

    @property
    def retain_cpu_backup(self) -> bool:
        """Always False: contents are in host memory only while the memory is paused."""
        return False

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        if value:
            raise FerroError(
                "torch_memory_saver.retain_cpu_backup=True is not supported: contents are in host "
                "memory only while the memory is paused, so copy what later steps read"
            )

    def get_cpu_backup(self, x: torch.Tensor, zero_copy: bool = False) -> torch.Tensor | None:
        """Returns None, because contents that are not paused have no backup.

        Raises `FerroError` while memory on the tensor's device is paused: it does not read backups.
        """
        _regions.require_installed("torch_memory_saver.get_cpu_backup()")
        if _sleep.asleep(device=x.device).device_bytes:
            raise FerroError(
                "torch_memory_saver.get_cpu_backup() does not read contents of paused memory: "
                "resume() its tag, or copy the tensor to the host before pause()"
            )
        return None

    def set_disk_backup_dir(self, path: str) -> None:
        """Raises `FerroError`: contents are kept in host memory only."""
        raise FerroError(_NO_DISK)

    def _name_of(self, tag: str, is_kept: bool) -> str:
        """The `ferro_alloc.tag` of the memory of a region."""
        _check_tag(tag)
        with self._lock:
            if (tag, is_kept) not in self._names:
                name = f"region {tag}" + ("" if is_kept else " (contents dropped)")
                if len(name) > _tags.LONGEST or not name.isprintable():
                    name = f"region number {len(self._names)}"
                while name in self._names.values():
                    name += "'"
                self._names[tag, is_kept] = name
            return self._names[tag, is_kept]

    def _names_of(self, tag: str | None, are_kept: bool) -> list[str]:
        with self._lock:
            return [
                name
                for (known, is_kept), name in self._names.items()
                if is_kept == are_kept and (not tag or known == tag)
            ]

    def _pause_process(self, call: str, kept: list[str], dropped: list[str]) -> None:
        """Pauses all memory of the process but that of disable().

        `kept` and `dropped` are the names of all regions.
        """
        import torch

        if not torch.cuda.is_initialized():
            return
        with ExitStack() as pins:
            for index in range(torch.cuda.device_count()):
                for address, size in _blocks_of(_DISABLED, index):
                    pins.callback(_load.load().unpin, address, size)
                    _load.load().pin(address, size)
            keeps = _is_set(_WHOLE_KEPT)
            slept = _sleep.put_to_sleep(None, keeps, otherwise=dropped if keeps else kept)
        staying = dict(slept.staying)
        staying.pop("pinned", None)  # memory of disable()
        _regions.warn_of_staying(call, staying)


_NO_DISK = (
    "torch_memory_saver of ferro_alloc keeps contents in host memory, not on a disk: use "
    "enable_cpu_backup=True, or drop contents that the program can load again"
)


def _check_backup(cpu: bool, disk: bool, backend: str | None) -> None:
    if disk:
        raise FerroError(_NO_DISK)
    if backend is not None and (not cpu or backend not in ("mmap", "pinned")):
        raise ValueError(
            f"cpu_backup_backend={backend!r}: expected 'mmap' or 'pinned', together with "
            "enable_cpu_backup=True"
        )


def _check_tag(tag: object) -> None:
    if not isinstance(tag, str):
        raise FerroError(f"torch_memory_saver got the tag {tag!r}: expected a string")


def _is_whole_process(tag: str | None) -> bool:
    """Whether `tag` stands for all memory of the process, of whatever region."""
    return (not tag or tag == _DEFAULT) and _is_set(_WHOLE)


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes")


def _blocks_of(tag: str, index: int) -> list[tuple[int, int]]:
    """Address and bytes of each block in use that has the tag."""
    wanted = {address for address, name in _load.load().tagged_blocks(index) if name == tag}
    if not wanted:
        return []
    return [
        (block["address"], block["size"])
        for segment in segments()
        for block in segment["blocks"]
        if segment["device"] == index and block["address"] in wanted
    ]


@contextmanager
def configure_subprocess() -> Iterator[None]:
    """Processes that are started inside it have ferro_alloc installed, by FERRO_ALLOC=1."""
    before = os.environ.get(_variable.NAME)
    if _variable.value() in _variable.OFF:
        os.environ[_variable.NAME] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_variable.NAME, None)
        else:
            os.environ[_variable.NAME] = before


torch_memory_saver = TorchMemorySaver()
"""The object that programs import."""
