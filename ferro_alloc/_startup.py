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
STRICT = "strict"

_armed: AfterImport | None = None
_begun = False


def begin() -> None:
    """Waits for the import of torch when FERRO_ALLOC is on."""
    global _armed, _begun
    _begun = True
    value = _value()
    if value in OFF:
        return
    if value not in (*ON, STRICT):
        _say(f"{_what_is_wrong(value)}, so it stays off")
        return
    _armed = AfterImport("torch", _install_or_fail if value == STRICT else _install)
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
    return _begun or any((Path(folder) / "ferro_alloc.pth").is_file() for folder in folders)


def describe() -> str:
    """What FERRO_ALLOC does in processes like this one, in one line; empty where it is off."""
    value = _value()
    if value in OFF:
        return ""
    if value not in (*ON, STRICT):
        return f"{_what_is_wrong(value)}; it stays off"
    if is_in_place():
        return f"{ENVIRONMENT_VARIABLE} is '{value}': installs it when torch is imported"
    return (
        f"{ENVIRONMENT_VARIABLE} is '{value}' without an effect, because Python finds no "
        "ferro_alloc.pth when it starts: run `pip install --no-build-isolation .`, also with -e"
    )


def _value() -> str:
    return os.environ.get(ENVIRONMENT_VARIABLE, "").strip().lower()


def _what_is_wrong(value: str) -> str:
    return f"{ENVIRONMENT_VARIABLE} is {value!r}: expected 1, 0 or strict"


def _install(torch: ModuleType) -> None:
    try:
        allocator.install()
    except (FerroError, ValueError) as error:
        _say(f"{error}; the program goes on with PyTorch's own allocator")
    except Exception as error:
        _say(f"{error!r}; the program goes on with PyTorch's own allocator")


def _install_or_fail(torch: ModuleType) -> None:
    """The import of torch fails with whatever this raises."""
    allocator.install(strict=True)


def _say(text: str) -> None:
    print(f"ferro_alloc: {text}", file=sys.stderr)
