"""A simulated GPU that unmodified PyTorch runs on; see docs/simulated-gpu.md.

Call `ferro_alloc.sim.activate(gpu="h100")` first and import torch after it.
"""

from ferro_alloc.sim._activate import MODES, activate, description, has_clock, is_active
from ferro_alloc.sim._control import (
    CallCount,
    Clock,
    DeviceMemory,
    LibraryFailure,
    UncomputedRead,
    clear_faults,
    clock,
    counters,
    drain,
    fault,
    kernels,
    library_failures,
    memory,
    pending,
    report,
    reset_counters,
    uncomputed_reads,
    unsupported,
)
from ferro_alloc.sim._missing import not_simulated

__all__ = [
    "MODES",
    "CallCount",
    "Clock",
    "DeviceMemory",
    "LibraryFailure",
    "UncomputedRead",
    "activate",
    "clear_faults",
    "clock",
    "counters",
    "description",
    "drain",
    "fault",
    "has_clock",
    "is_active",
    "kernels",
    "library_failures",
    "memory",
    "not_simulated",
    "pending",
    "report",
    "reset_counters",
    "uncomputed_reads",
    "unsupported",
]
