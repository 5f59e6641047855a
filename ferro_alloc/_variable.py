"""The environment variable FERRO_ALLOC: its value, and whether it has an effect here."""

from __future__ import annotations

import os
import site
from collections.abc import Callable
from pathlib import Path

NAME = "FERRO_ALLOC"
ON = ("1", "true", "on", "yes")
OFF = ("", "0", "false", "off", "no")
STRICT = "strict"

_was_read = False
on_install: Callable[[], None] | None = None
"""Every `install()` calls this first, whether or not it succeeds. Set before the program starts."""


def note_reading() -> None:
    """Notes that Python read ferro_alloc.pth when this process started, from any folder."""
    global _was_read
    _was_read = True


def was_read() -> bool:
    return _was_read


def value() -> str:
    return os.environ.get(NAME, "").strip().lower()


def what_is_wrong(value: str) -> str:
    """Returns what is wrong with a value; empty for a valid one."""
    if value in (*ON, *OFF, STRICT):
        return ""
    return f"{NAME} is {value!r}: expected 1, 0 or strict"


def is_in_place() -> bool:
    """Whether Python finds ferro_alloc.pth in a folder whose .pth files it reads."""
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    return _was_read or any((Path(folder) / "ferro_alloc.pth").is_file() for folder in folders)


def describe() -> str:
    """The effect of FERRO_ALLOC in processes like this one, in one line; empty if it is off."""
    now = value()
    if now in OFF:
        return ""
    if wrong := what_is_wrong(now):
        return f"{wrong}; it stays off"
    if is_in_place():
        return f"{NAME} is '{now}': installs it when torch is imported"
    return (
        f"{NAME} is '{now}' without an effect, because Python finds no ferro_alloc.pth when it "
        "starts: run `pip install --no-build-isolation .`, also with -e"
    )
