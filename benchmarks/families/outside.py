"""The memory that a process takes outside its allocator: its context, kernels and libraries."""

from __future__ import annotations

import ctypes
import os


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


MOST_PROCESSES = 256
NOT_KNOWN = (1 << 64) - 1


def used_by_this_process(device: int = 0) -> int | None:
    """Bytes of the card by NVML; None if NVML does not report them, as in some containers."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    handle = ctypes.c_void_p()
    found = (_Process * MOST_PROCESSES)()
    count = ctypes.c_uint(MOST_PROCESSES)
    if nvml.nvmlInit_v2() != 0:
        return None
    if nvml.nvmlDeviceGetHandleByIndex_v2(device, ctypes.byref(handle)) != 0:
        return None
    status = nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), found)
    if status != 0:
        return None
    for process in found[: count.value]:
        if process.pid == os.getpid() and process.used != NOT_KNOWN:
            return int(process.used)
    return None
