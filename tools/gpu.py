"""Detects a real driver and a real GPU. Needs no torch."""

from __future__ import annotations

import ctypes
from functools import cache


@cache
def gpu_count() -> int:
    """The number of devices of the machine's own driver; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value
