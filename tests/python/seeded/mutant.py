"""Puts a fault of tests/mutants between the allocator and the driver."""

import ctypes

from ferro_alloc import _C


def plant(library: str, name: str) -> None:
    faults = ctypes.CDLL(library)
    faults.plant.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
    if faults.plant(_C.driver_table_address(), name.encode()):
        raise SystemExit(f"there is no fault named {name}")
