"""The segments of PyTorch's memory, for calls that repeat."""

from __future__ import annotations

import ctypes
from typing import Any


def segments() -> list[dict[str, Any]]:
    """The segments of all devices with their blocks, without the history.

    Each call of `torch.cuda.memory_snapshot()` in torch 2.11 releases a reference to its flag,
    True or False, that it does not own. Python 3.11 ends with a fatal error after some 17,000
    calls, when no reference is left. So this adds one; in other versions it changes nothing.
    """
    import torch

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(False))
    found: list[dict[str, Any]] = torch.cuda.memory_snapshot(include_traces=False)
    return found
