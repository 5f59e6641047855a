"""Launches of graphs whose scratch may serve eager work."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ferro_alloc import _load
from ferro_alloc._errors import FerroError


class LentScratchError(FerroError):
    """Raised by a launch whose scratch is lent (`graphs.lend`) and cannot be had back now.

    Nothing was launched and nothing is lost; a later launch tries again. `missing_bytes` have to
    become free on the device, 0 where the driver refused for another reason.
    """

    def __init__(self, group: object, missing_bytes: int) -> None:
        needed = (
            f"{missing_bytes} more bytes of memory are needed for it"
            if missing_bytes
            else "the driver refuses to map it"
        )
        super().__init__(
            f"a graph of {group} cannot be launched, because its scratch is lent and {needed}: "
            "free tensors and launch again, and to keep scratch from being lent call "
            "graphs.lend(group, enabled=False)"
        )
        self.missing_bytes = missing_bytes


def begin_launch(number: int, group: object, device: int | None) -> Callable[[], None]:
    """Takes back what that group has lent on the device, or on all, and keeps it until the result
    is called, which has to follow. Raises `LentScratchError`, and what PyTorch raises where the
    driver refuses."""
    extension = _load.load()
    missing = extension.begin_launch(number, device)
    if missing >= 0:
        raise LentScratchError(group, missing)
    return partial(extension.end_launch, device)
