"""Adjusts torch the moment it is imported, for what the simulated GPU cannot carry.

PyTorch's own operators for the CPU compute small results in the place of kernels. cuDNN is the real
library and does not initialise without a GPU; PyTorch's own convolutions and attention kernels
stand in for it.
"""

from __future__ import annotations

import ctypes
import os
from importlib import import_module
from types import ModuleType


def has_nvml() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def adjust_torch(torch: ModuleType, device_count: int, values: bool) -> None:
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    # Before its first use of CUDA torch counts devices through NVML, which knows the real ones.
    torch.cuda._cached_device_count = device_count
    # Inductor's compile processes would look for a GPU of their own and find none.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    # From 2.13 on torch's own expandable segments ask NVML how they may be shared, and crash where
    # there is none.
    if int(torch.__version__.split(".")[1]) >= 13 and not has_nvml():
        os.environ.setdefault("TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC", "0")
    # An extension for torch, which has to be there before it.
    import_module("ferro_alloc.sim._values").install(compute=values)
