"""A simulated GPU that unmodified PyTorch runs on; see docs/simulated-gpu.md.

Call `ferro_alloc.sim.activate(gpu="h100")` first and import torch after it.
"""

from ferro_alloc.sim._activate import MODES, activate, description, has_clock, is_active
from ferro_alloc.sim._control import (
    CallCount,
    Clock,
    DeviceMemory,
    clear_faults,
    clock,
    counters,
    drain,
    fault,
    memory,
    pending,
    report,
    reset_counters,
    unsupported,
)

__all__ = [
    "MODES",
    "CallCount",
    "Clock",
    "DeviceMemory",
    "activate",
    "clear_faults",
    "clock",
    "counters",
    "description",
    "drain",
    "fault",
    "has_clock",
    "is_active",
    "memory",
    "pending",
    "report",
    "reset_counters",
    "unsupported",
]
