"""The costs of an allocator so far: driver calls, and waits of the host.

On the simulated GPU every call is counted, by the driver itself; on a real one ferro_alloc counts
its own, and PyTorch's allocators count segments at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferro_alloc import DeviceStatus

# Driver functions by the names of ferro_alloc's own counters.
CALLS = {
    "reserve": "cuMemAddressReserve",
    "create": "cuMemCreate",
    "map": "cuMemMap",
    "set_access": "cuMemSetAccess",
    "unmap": "cuMemUnmap",
    "release": "cuMemRelease",
}

# All functions with which PyTorch's allocators and ours take and release device memory.
MEMORY_CALLS = ("cuMemAlloc", "cuMemFree", *CALLS.values())


def allocator_devices(allocator: str) -> tuple[DeviceStatus, ...]:
    """ferro_alloc's own status of its devices; empty under the others."""
    if allocator != "ferro_alloc":
        return ()
    import ferro_alloc

    return ferro_alloc.status().devices


def driver_calls(allocator: str, simulated: bool) -> dict[str, int]:
    """By name: `MEMORY_CALLS` on the simulated GPU, elsewhere the allocator's own counts."""
    if simulated:
        from ferro_alloc import sim

        counts = {name.removesuffix("_v2"): c.calls for name, c in sim.counters().items()}
        return {name: counts.get(name, 0) for name in MEMORY_CALLS}
    import torch

    stats = torch.cuda.memory_stats()
    calls = {name: stats.get(name, 0) for name in ("num_device_alloc", "num_device_free")}
    if devices := allocator_devices(allocator):
        for name, function in CALLS.items():
            calls[function] = sum(device.driver_calls[name] for device in devices)
    return calls


def driver_ms() -> float:
    """The modelled time of memory calls so far on an H100. Simulated GPU only."""
    from ferro_alloc import sim

    counts = sim.counters()
    costs = (
        c.microseconds for name, c in counts.items() if name.removesuffix("_v2") in MEMORY_CALLS
    )
    return sum(costs) / 1e3


@dataclass(frozen=True)
class Costs:
    """The costs up to one moment; None if the cost is not counted."""

    driver_calls: int | None
    driver_ms: float | None
    stalls: int | None
    """Waits of the host that the allocator asked for. PyTorch's: for all streams
    (`num_sync_all_streams`). ferro_alloc's: for one event each, or for the device."""
    slowest_ms: float | None
    """Of the slowest request since the last look. None where ferro_alloc does not say it, and on
    the simulated GPU, whose driver takes no time."""


def costs_so_far(allocator: str, simulated: bool) -> Costs:
    import torch

    devices = allocator_devices(allocator)
    calls = driver_calls(allocator, simulated)
    stalls = torch.cuda.memory_stats().get("num_sync_all_streams")
    if devices:
        stalls = sum(device.driver_calls["event_wait"] for device in devices)
    elif allocator == "cudaMallocAsync":
        stalls = None  # the driver waits by itself
    slowest = [slowest_since_last_look(device.device) for device in devices if not simulated]
    counted = simulated or bool(devices)
    return Costs(
        driver_calls=sum(calls[name] for name in MEMORY_CALLS if name in calls)
        if counted
        else None,
        driver_ms=driver_ms() if simulated else None,
        stalls=stalls,
        slowest_ms=max(slowest, default=None),
    )


def slowest_since_last_look(index: int) -> float:
    import ferro_alloc

    view = ferro_alloc.device(index)
    slowest = view.slowest_miss_ms
    view.reset_slowest_miss()
    return slowest


def after_warm_up(steps: Sequence[Costs], warm_up: int) -> dict[str, Any]:
    """The growth of each cost after so many steps, at least one; `steps`: the costs after each.

    `worst_step_ms` is the largest growth of `driver_ms` in one of these steps, `slowest_ms` the
    slowest request of all.
    """
    first, last = asdict(steps[warm_up - 1]), asdict(steps[-1])
    found: dict[str, Any] = {
        name: None if value is None else last[name] - value for name, value in first.items()
    }
    slowest = [costs.slowest_ms for costs in steps[warm_up:] if costs.slowest_ms is not None]
    found["slowest_ms"] = max(slowest, default=None)
    times = [costs.driver_ms for costs in steps[warm_up - 1 :] if costs.driver_ms is not None]
    found["worst_step_ms"] = max((b - a for a, b in pairwise(times)), default=None)
    return found
