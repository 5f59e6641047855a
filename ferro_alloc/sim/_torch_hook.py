"""Adjusts torch the moment it is imported, for what the simulated GPU cannot carry.

cuDNN is the real library and does not initialise without a GPU. PyTorch's own convolutions and
attention kernels stand in for it.
"""

from __future__ import annotations

from types import ModuleType


def adjust_torch(torch: ModuleType, device_count: int) -> None:
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    # Before its first use of CUDA torch counts devices through NVML, which knows the real ones.
    torch.cuda._cached_device_count = device_count
