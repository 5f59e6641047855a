"""The statistics of `torch.cuda.memory_stats()` that the log has for each step."""

from __future__ import annotations

import torch

STATISTICS = (
    ("allocation", "current"),
    ("allocation", "peak"),
    ("allocation", "allocated"),
    ("allocation", "freed"),
    ("active", "current"),
    ("requested_bytes", "current"),
    ("requested_bytes", "allocated"),
    ("allocated_bytes", "current"),
    ("allocated_bytes", "peak"),
    ("reserved_bytes", "current"),
    ("reserved_bytes", "peak"),
)


def columns(devices: range) -> list[str]:
    """The names of the columns; those of the first device have no prefix."""
    names = ["/".join(pair) for pair in STATISTICS] + ["num_ooms"]
    return [name if device == 0 else f"{device}:{name}" for device in devices for name in names]


def statistics(devices: range) -> list[int]:
    """The values in the order of `columns`."""
    found = []
    for device in devices:
        stats = torch._C._cuda_memoryStats(device)
        found += [stats[name]["all"][column] for name, column in STATISTICS]
        found.append(stats["num_ooms"])
    return found
