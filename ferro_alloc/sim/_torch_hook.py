"""Adjusts torch the moment it is imported, for what the simulated GPU cannot carry.

PyTorch's own operators for the CPU compute small results in the place of kernels. cuDNN's attention
is chosen only where a program asks for it: PyTorch's own kernels take the same memory, but for some
KiB, and have durations.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType


def adjust_torch(torch: ModuleType, device_count: int, values: bool) -> None:
    torch.backends.cuda.enable_cudnn_sdp(False)
    # Where a program loaded NVML first, that is the real library, which knows the real devices.
    torch.cuda._cached_device_count = device_count
    # Inductor's compile processes would look for a GPU of their own and find none.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    # An extension for torch, which has to be there before it.
    import_module("ferro_alloc.sim._values").install(compute=values)
