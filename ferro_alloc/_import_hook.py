"""Calls a function the moment a module has been imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


class _Loader(importlib.abc.Loader):
    """The module's own loader, with a call afterwards."""

    def __init__(self, loader: importlib.abc.Loader, after: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._after = after

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Code that reads the module's loader gets the real one.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._after(module)


class AfterImport(importlib.abc.MetaPathFinder):
    """Waits until one module is imported. A program may also only query whether torch exists.

    It calls `after(module)` once; at once if the module is already imported when this is armed.
    """

    def __init__(self, name: str, after: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._after = after

    def arm(self) -> None:
        if self._name in sys.modules:
            self._after(sys.modules[self._name])
        else:
            sys.meta_path.insert(0, self)

    def disarm(self) -> None:
        """Cancels the call. Does nothing if it was made or if this is not armed."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name or self not in sys.meta_path:
            return None
        place = sys.meta_path.index(self)
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(place, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._imported)
        return spec

    def _imported(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._after(module)
