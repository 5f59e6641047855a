"""Installs and uninstalls the allocator, and reports its status."""

from __future__ import annotations

import ctypes
import gc
import importlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from ferro_alloc import _load, _variable
from ferro_alloc._alloc_conf import ignored_options
from ferro_alloc._errors import FerroError
from ferro_alloc._failures import explain
from ferro_alloc._own_lines import LIBRARIES, NO_LINE
from ferro_alloc._status import DeviceStatus, Status
from ferro_alloc._version import __version__
from ferro_alloc.config import Config, differences, without_effect

_log = logging.getLogger("ferro_alloc")
_NO_CACHE = (
    "caching is off, so every request is a cudaMalloc (PYTORCH_NO_CUDA_MEMORY_CACHING, or "
    "torch.cuda.caching_allocator_enable(False))"
)


REPORT_ON_OOM = "FERRO_ALLOC_REPORT_ON_OOM"
_ON_OOM = "ferro_alloc.snapshots._on_oom"
_TAGS = "ferro_alloc._tags"
_GRAPH_DEBUG = "ferro_alloc.graphs._debug"
_lock = threading.Lock()
_installed_config: Config | None = None


def install(config: Config | None = None, *, strict: bool = False) -> None:
    """Makes ferro_alloc the allocator of all CUDA memory that PyTorch takes from now on.

    This works at any time except during the capture of a CUDA graph: existing tensors, graphs and
    pools stay valid, and their memory stays with the allocator that created them. The earlier the
    call, the more memory it can share. Without `config` the settings come from FERRO_ALLOC_CONF.
    While it is installed, a call with the same settings, or without any, does nothing. After
    `uninstall()` the settings may differ; once CUDA memory was allocated, all but `page_size_mb`
    and `layout`.

    Raises `FerroError`, and changes nothing, if installation is impossible: no driver, another
    torch than the one it was built for, a capture, other settings than those in force, cudagraph
    trees of torch.compile that hold memory, or, with pages, torch_memory_saver in its preload mode.
    With `strict` it also raises if ferro_alloc would be installed but not in force: caching is off,
    or the environment asks for other settings than those in force. Raises `ValueError` or
    `TypeError` for invalid settings. Thread-safe. Does not initialise CUDA. Logs the settings in
    force to `ferro_alloc` (INFO).
    """
    global _installed_config
    # A call of the program overrides FERRO_ALLOC.
    if _variable.on_install is not None:
        _variable.on_install()
    if config is not None and not isinstance(config, Config):
        raise TypeError(f"install() got {config!r}: expected a ferro_alloc.Config, or None")
    if not isinstance(strict, bool):
        raise TypeError(f"install() got strict={strict!r}: expected True or False")
    wanted = Config.from_env() if config is None else config
    with _lock:
        if is_installed():
            if config is not None or strict:
                _refuse_other_settings(wanted)
            if strict:
                _refuse_without_cache(_load.load())
            return
        extension = _load.load()
        problem = extension.driver_problem()
        if problem:
            raise FerroError(f"ferro_alloc cannot be installed on this machine: {problem}")
        if wanted.layout == "pages":
            _refuse_preloaded_saver()
        if strict:
            _refuse_without_cache(extension)
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
                wanted.graph_layout,
                wanted.graph_order,
            )
        except torch.AcceleratorError:
            raise
        except RuntimeError as error:
            raise FerroError(f"{error}{_displaced()}") from error
        torch.OutOfMemoryError.ferro_alloc = property(explain)
        extension.name_call_sites(list(LIBRARIES), NO_LINE)
        extension.keep_gil_in_capture_begin()
        _installed_config = wanted
    _tell(wanted)
    if _TAGS in sys.modules:
        sys.modules[_TAGS].tell_again()
    if os.environ.get(REPORT_ON_OOM) or _ON_OOM in sys.modules:
        importlib.import_module(_ON_OOM).report_where_asked()
    if wanted.graph_debug:
        torch.cuda._lazy_call(_debug_graphs)


def uninstall() -> None:
    """Returns all CUDA memory taken from now on to the previous allocator.

    Tensors, graphs and pools that ferro_alloc created stay valid: it keeps their memory until they
    are freed, and continues to serve its own pools. `install()` may be called again. Does nothing
    if ferro_alloc is not installed. Raises `FerroError`, and changes nothing, during the capture of
    a CUDA graph. Thread-safe.
    """
    global _installed_config
    with _lock:
        if _installed_config is None:
            return
        debugs = _installed_config.graph_debug
        import torch

        try:
            _load.load().uninstall()
        except torch.AcceleratorError:
            raise
        except RuntimeError as error:
            raise FerroError(str(error)) from error
        _installed_config = None
    if debugs and _GRAPH_DEBUG in sys.modules:
        sys.modules[_GRAPH_DEBUG].debug(False)


def _debug_graphs() -> None:
    """Runs when CUDA is initialised; by then another allocator may be in force."""
    if _installed_config is not None and _installed_config.graph_debug:
        importlib.import_module(_GRAPH_DEBUG).debug()


def _displaced() -> str:
    if _installed_config is None:
        return ""
    return " ferro_alloc was installed before, and that allocator has replaced it since."


def _ignored(config: Config) -> tuple[str, ...]:
    return ignored_options(layout=config.layout) + without_effect(config)


def _tell(config: Config) -> None:
    ignored = ", ".join(_ignored(config))
    _log.info(
        "ferro_alloc %s is installed with %s%s",
        __version__,
        config,
        f"; without an effect: {ignored}" if ignored else "",
    )


def _refuse_other_settings(wanted: Config) -> None:
    if _installed_config is not None and wanted != _installed_config:
        raise FerroError(
            f"ferro_alloc is installed with {differences(_installed_config, wanted)}: settings do "
            "not change while it is installed, so call ferro_alloc.uninstall() first"
        )


def _refuse_without_cache(extension: ModuleType) -> None:
    if not extension.is_caching():
        raise FerroError(f"ferro_alloc would be installed and not active: {_NO_CACHE}")


def _refuse_preloaded_saver() -> None:
    """A preloaded torch_memory_saver replaces cudaMalloc, from which pages do not come.

    If it is loaded later (hook_mode "torch"), its functions are not among the process's own.
    """
    if hasattr(ctypes.CDLL(None), "tms_pause"):
        raise FerroError(
            "torch_memory_saver is preloaded (LD_PRELOAD) and can pause only memory of cudaMalloc, "
            "so with layout 'pages' its pause() would free nothing: without LD_PRELOAD, import "
            "torch_memory_saver from ferro_alloc.memory_saver, or use its hook_mode 'torch'; or "
            "install with layout='segments' (FERRO_ALLOC_CONF=layout:segments)"
        )


def _refuse_cudagraph_trees() -> None:
    """Cudagraph trees assume that their tensors' deleter is that of the current allocator."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    containers = _of_all_threads(getattr(trees, "local", None), "tree_manager_containers")
    if any(each.tree_manager is not None for known in containers for each in list(known.values())):
        raise FerroError(
            "torch.compile holds CUDA graphs whose memory came from the allocator before "
            "ferro_alloc: call torch.compiler.reset() first, or install before they are made"
        )


def _of_all_threads(local: object, name: str) -> Iterator[Any]:
    """Yields the values of all threads under that name in a `threading.local`.

    The garbage collector sees its table, which has the attributes of each thread.
    """
    if hasattr(local, name):
        yield getattr(local, name)
    for table in gc.get_referents(local):
        for attributes in list(table.values()) if isinstance(table, dict) else ():
            if isinstance(attributes, dict) and name in attributes:
                yield attributes[name]


def is_installed() -> bool:
    """Whether PyTorch now takes its CUDA memory through ferro_alloc. Imports no torch."""
    return _installed_config is not None and bool(_load.load().is_installed())


def settings() -> Config | None:
    """The installed settings; None while ferro_alloc is not installed."""
    return _installed_config


def status() -> Status:
    """Reports what is in force in this process; missing parts do not make it raise."""
    built: str | None = None
    running: str | None = None
    problem = ""
    inactive = ""
    devices: tuple[DeviceStatus, ...] = ()
    config = _installed_config
    try:
        running = _load.running_torch()[0]
        built = _load.built_for()[0]
        extension = _load.load()
        problem = extension.driver_problem()
        if config is not None:
            inactive = _why_inactive(extension)
        devices = _devices(extension)
    except FerroError as error:
        problem = str(error)
    return Status(
        installed=config is not None,
        inactive=inactive,
        torch_built=built,
        torch_running=running,
        problem=problem,
        config=config,
        ignored=_ignored(config or Config()),
        startup=_variable.describe(),
        devices=devices,
    )


def _why_inactive(extension: ModuleType) -> str:
    import torch

    if not extension.is_installed():
        name = torch.cuda.get_allocator_backend()
        return f"the allocator '{name}' has replaced it"
    return "" if extension.is_caching() else _NO_CACHE


def _devices(extension: ModuleType) -> tuple[DeviceStatus, ...]:
    import torch

    # Reading the number of devices would initialise CUDA in a program that has not done so yet.
    if not extension.is_in_place() or not torch.cuda.is_initialized():
        return ()
    return tuple(
        DeviceStatus(index, **extension.device_report(index))
        for index in range(torch.cuda.device_count())
    )
