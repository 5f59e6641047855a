"""Devices as torch names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferro_alloc._errors import FerroError

if TYPE_CHECKING:
    import torch


def device_index(device: int | str | torch.device | None) -> int:
    """Returns the number of a CUDA device; None and "cuda" are the current one, and initialise
    CUDA.

    Raises `FerroError` for a value that names no CUDA device of this machine.
    """
    import torch

    index: object = device
    if isinstance(device, str):
        try:
            index = torch.device(device)
        except RuntimeError:
            index = device
    if isinstance(index, torch.device) and index.type == "cuda":
        index = index.index
    if index is None:
        return int(torch.cuda.current_device())
    count = torch.cuda.device_count()
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
        raise FerroError(
            f"there is no device {device!r}: expected a number from 0 to {count - 1}, a name such "
            "as 'cuda:0', a torch.device, or None"
        )
    return index
