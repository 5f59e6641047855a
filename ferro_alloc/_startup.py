"""Installs ferro_alloc when torch is imported, if the environment variable FERRO_ALLOC is on, and
gives the process the simulated GPU of its parent, which FERRO_ALLOC_SIM describes.

ferro_alloc.pth calls `begin()` when Python starts, in every process that inherits one of these
variables. So this module does not import torch, and imports the allocator only after torch, when
most of its dependencies are loaded. No error in this module may keep Python from starting.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from ferro_alloc import _variable
from ferro_alloc._import_hook import AfterImport

SIMULATED = "FERRO_ALLOC_SIM"

_armed: AfterImport | None = None


def begin() -> None:
    """Waits for the import of torch if FERRO_ALLOC is on. In a virtual environment Python reads its
    .pth files twice: the second call does nothing."""
    global _armed
    if _variable.was_read():
        return
    _variable.note_reading()
    if os.environ.get(SIMULATED):
        _inherit_simulated_gpu()
    value = _variable.value()
    if wrong := _variable.what_is_wrong(value):
        _say(f"{wrong}, so it stays off")
        return
    if value in _variable.OFF:
        return
    _armed = AfterImport("torch", _install_or_fail if value == _variable.STRICT else _install)
    _variable.on_install = disarm
    _armed.arm()


def disarm() -> None:
    """Cancels the installation: the caller chooses the allocator itself."""
    global _armed
    if _armed is not None:
        _armed.disarm()
        _armed = None


def _inherit_simulated_gpu() -> None:
    try:
        from ferro_alloc.sim import _activate

        _activate.inherit()
    except Exception as error:
        _say(f"{error}; this process has no simulated GPU")


def _install(torch: ModuleType) -> None:
    try:
        from ferro_alloc import allocator
        from ferro_alloc._errors import FerroError

        try:
            allocator.install()
        except (FerroError, ValueError) as error:
            _say(f"{error}; the program continues with PyTorch's own allocator")
    except Exception as error:
        _say(f"{error!r}; the program continues with PyTorch's own allocator")


def _install_or_fail(torch: ModuleType) -> None:
    """An error of this function makes the import of torch fail."""
    from ferro_alloc import allocator

    allocator.install(strict=True)


def _say(text: str) -> None:
    print(f"ferro_alloc: {text}", file=sys.stderr)
