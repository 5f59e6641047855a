"""Devices and streams in the extension's form: an index, and the number of a stream."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from ferro_alloc import _load
from ferro_alloc._errors import FerroError

if TYPE_CHECKING:
    import torch


def require_device(what: str) -> ModuleType:
    """Returns the extension and initialises CUDA. Raises `FerroError` without a CUDA device."""
    extension = _load.load()
    import torch

    if not torch.cuda.is_available():
        raise FerroError(f"{what} needs a CUDA device, and torch finds none")
    torch.cuda.init()
    return extension


def check_stream(stream: object) -> torch.cuda.Stream | None:
    """Returns a `torch.cuda.Stream` also for a `torch.Stream` of a CUDA device. Raises `FerroError`
    unless it is a stream of such a device or None."""
    import torch

    if stream is None or isinstance(stream, torch.cuda.Stream):
        return stream
    if isinstance(stream, torch.Stream) and stream.device.type == "cuda":
        return torch.cuda.Stream(
            stream_id=stream.stream_id,
            device_index=stream.device_index,
            device_type=stream.device_type,
        )
    raise FerroError(f"{stream!r} is not a stream of a CUDA device: expected one, or None")
