"""Writes the report when memory runs out."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

from ferro_alloc._errors import FerroError, check_file
from ferro_alloc._status import size_text
from ferro_alloc.allocator import REPORT_ON_OOM
from ferro_alloc.snapshots._report import pools_in_force, write

_log = logging.getLogger("ferro_alloc")
_lock = threading.Lock()
_waiting: list[Path] = []
_known: set[Path] = set()
_observed: set[str] = set()
"""Backends with an attached observer. PyTorch has no way to remove an observer."""


def report_on_oom(path: str | Path) -> None:
    """Writes the report of `report()` when a request of this process runs out of memory.

    It writes once for each path, at the first failure that the program sees, before the error is
    raised. `{pid}` becomes the number of the process, for programs with several processes. It works
    under any allocator. The time line and the lines of code need `_record_memory_history()`, as for
    `report()`. If the report cannot be written, the logger `ferro_alloc` gets the reason, and the
    program's error stays the same. Raises `FerroError` for an invalid path, or if the folder does
    not exist. Thread-safe. Does not initialise CUDA.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise FerroError(f"report_on_oom({path!r}): expected the path of a file to write")
    wanted = Path(str(path).replace("{pid}", str(os.getpid()))).absolute()
    check_file(wanted)
    with _lock:
        if wanted not in _known:
            _known.add(wanted)
            _waiting.append(wanted)
    follow()


def report_where_asked() -> None:
    """Called after `install()`: observes the new allocator, and reads the path of the
    environment."""
    path = os.environ.get(REPORT_ON_OOM)
    try:
        if path:
            report_on_oom(path)
        elif _known:
            follow()
    except FerroError as error:
        _log.warning("%s: %s", REPORT_ON_OOM, error)


def follow() -> None:
    """Observes the current allocator once CUDA is initialised."""
    import torch

    torch.cuda._lazy_call(lambda: _observe(torch))


def _observe(torch: Any) -> None:
    backend = torch.cuda.get_allocator_backend()
    with _lock:
        if backend in _observed:
            return
        _observed.add(backend)
    torch._C._cuda_attach_out_of_memory_observer(lambda *facts: _see_failure(torch, *facts))


def _see_failure(torch: Any, device: int, requested: int, total: int, free: int) -> None:
    """Runs in the thread whose request failed, with Python's lock and no lock of the allocator."""
    with _lock:
        paths = _waiting[:]
        _waiting.clear()
    title = f"GPU memory when a request for {size_text(requested)} on device {device} failed"
    for path in paths:
        try:
            snapshot = torch.cuda.memory._snapshot()
            write(path, snapshot, pools=pools_in_force(torch), title=title)
            _log.warning("memory ran out: the report is in %s", path)
        except Exception as error:
            # The program must get its own error.
            _log.warning("memory ran out, and the report was not written: %s", error)
