"""Chooses the allocator of a simulated program."""

from __future__ import annotations

import os
import re
from types import ModuleType
from typing import Any

from ferro_alloc import _startup, _variable
from ferro_alloc._alloc_conf import VARIABLES
from ferro_alloc._import_hook import AfterImport

ALLOCATORS = ("native", "expandable", "ferro_alloc")


def choose(name: str) -> None:
    """Chooses it for this process, before torch is imported. Other settings stay unchanged."""
    _startup.disarm()
    os.environ[_variable.NAME] = "0"
    if name == "ferro_alloc":
        hook = AfterImport("torch", _install)
        # A call of the program that imports torch would wait for the hook's call, and that for it.
        _variable.on_install = hook.disarm
        hook.arm()
        return
    variable = next((key for key in VARIABLES if os.environ.get(key)), VARIABLES[0])
    kept = re.sub(r"expandable_segments\s*:[^,]*,?", "", os.environ.get(variable, "")).strip(" ,")
    wanted = f"expandable_segments:{name == 'expandable'}"
    os.environ[variable] = ",".join(filter(None, (kept, wanted)))


def _install(torch: ModuleType) -> None:
    from ferro_alloc import allocator

    allocator.install()


def in_force(torch: Any) -> str:
    """Returns one of `ALLOCATORS`, or torch's name of another one."""
    backend = str(torch.cuda.get_allocator_backend())
    if backend != "native":
        return backend
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    return "expandable" if settings.get("expandable_segments") else "native"
