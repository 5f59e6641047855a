"""Installs ferro_alloc when torch is imported, if the environment variable FERRO_ALLOC says so.

`begin()` is called by ferro_alloc.pth when Python starts, in every process that inherits the
variable; so this imports no torch, and no mistake in here may keep Python from starting.
"""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path
from types import ModuleType

from ferro_alloc import allocator
from ferro_alloc._errors import FerroError
from ferro_alloc._import_hook import AfterImport

ENVIRONMENT_VARIABLE = "FERRO_ALLOC"
ON = ("1", "true", "on", "yes")
OFF = ("", "0", "false", "off", "no")

_armed: AfterImport | None = None


def begin() -> None:
    """Waits for the import of torch when FERRO_ALLOC is on."""
    global _armed
    value = os.environ.get(ENVIRONMENT_VARIABLE, "").strip().lower()
    if value in OFF:
        return
    if value not in ON:
        _say(f"{ENVIRONMENT_VARIABLE} is '{value}': expected 1 or 0, so it stays off")
        return
    _armed = AfterImport("torch", _install)
    allocator.on_install = disarm
    _armed.arm()


def disarm() -> None:
    """The program decides for itself."""
    global _armed
    if _armed is not None:
        _armed.disarm()
        _armed = None


def is_in_place() -> bool:
    """Whether Python finds ferro_alloc.pth in a folder whose .pth files it reads."""
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    return any((Path(folder) / "ferro_alloc.pth").is_file() for folder in folders)


def _install(torch: ModuleType) -> None:
    try:
        allocator.install()
    except FerroError as error:
        _say(f"{error}; the program goes on with PyTorch's own allocator")
    except Exception as error:
        _say(f"{error!r}; the program goes on with PyTorch's own allocator")


def _say(text: str) -> None:
    print(f"ferro_alloc: {text}", file=sys.stderr)
