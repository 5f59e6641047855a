"""The smallest limit on the reserved memory under which a workload finishes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.harness.processes import Child, ChildError
from benchmarks.training import passes

WORKLOADS = (
    "full_varlen",
    "lora_recompute",
    "conv",
    "moe",
    "generate",
    "generate_train",
    "fsdp_like",
    "offload",
    "quantised_load",
)
UNIT = 2 << 20  # limits are multiples of a page
# No time is measured while several processes share the card; each needs at most 16 GB of it.
JOBS_ON_GPU = 8
JOBS_SIMULATED = 2

Result = Mapping[str, Any]


@dataclass
class Record(passes.Record):
    """One allocator on one workload. Bytes and seconds; times only of a real GPU."""

    smallest_limit: int | None = None
    """The smallest limit known to suffice; None if the allocator has none."""
    costs_at_limit: dict[str, Any] = field(default_factory=dict)
    """The costs after the warm-up under that limit."""
    out_of_memory: dict[str, Any] = field(default_factory=dict)
    """The largest limit known not to suffice, how many steps ended under it, and what ferro_alloc
    said. Empty when it was not tried: it is smaller than peak allocated."""


def attempt(workload: str, allocator: str, options: Sequence[str], limit: int | None) -> Result:
    """The last object of benchmarks.harness.measure, under that limit if there is one."""
    arguments = ["--workload", workload, "--allocator", allocator, *options]
    arguments += [] if limit is None else ["--limit", str(limit)]
    with Child("benchmarks.harness.measure", arguments) as child:
        result = child.read()
        while "number" in result:
            result = child.read()
        return result


def find_smallest_limit(
    record: Record, run_under: Callable[[int], Result], resolution: float
) -> None:
    """Fills in the record, whose peaks must be those of a run without a limit.

    The limit is found up to `resolution` of peak allocated or one `UNIT`, whichever is more.
    """
    close = max(1, int(resolution * record.peak_allocated / UNIT))
    # The allocated peak does not fit into less; the reserved peak suffices for the same run.
    fails = (record.peak_allocated - 1) // UNIT
    works = math.ceil(record.peak_reserved / UNIT)
    record.costs_at_limit = record.costs
    limit = fails + 1
    while limit < works:
        result = run_under(limit * UNIT)
        if "out_of_memory" in result:
            fails = limit
            record.out_of_memory = {"limit": limit * UNIT, **result["out_of_memory"]}
        else:
            works = limit
            record.costs_at_limit = result["costs"]
        limit = (works + fails) // 2 if works - fails > close else works
    record.smallest_limit = works * UNIT


def add_limit(record: Record, options: Sequence[str], resolution: float) -> None:
    run_under = partial(attempt, record.workload, record.allocator, options)
    try:
        find_smallest_limit(record, run_under, resolution)
    except ChildError as error:
        record.problem = str(error)


def pair(values: Sequence[float | None], digits: int = 0) -> str:
    known = [f"{value:,.{digits}f}" for value in values if value is not None]
    return " / ".join(known) or "-"


def rows(records: Sequence[Record]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Headings, and one row for each workload under each allocator.

    If there are two figures, the second is that of the run under the smallest limit.
    """
    working = [record for record in records if not record.problem]
    headings: tuple[str, ...]
    headings = ("workload", "allocator", "allocated, GB", "reserved", "smallest limit")
    lines: list[Sequence[str]] = []
    for record in working:
        limit = record.smallest_limit
        costs = [record.costs, record.costs_at_limit][: 1 if limit is None else 2]
        beside = f"{passes.time_beside(record):.3f}" if record.seconds_beside else "-"
        lines.append(
            (
                record.workload,
                record.allocator,
                f"{record.peak_allocated / 1e9:.2f}",
                f"{record.peak_reserved / record.peak_allocated:.3f}",
                "-" if limit is None else f"{limit / record.peak_allocated:.3f}",
                pair([cost["driver_calls"] for cost in costs]),
                pair([cost["driver_ms"] for cost in costs], 1),
                pair([cost["worst_step_ms"] for cost in costs], 1),
                pair([cost["stalls"] for cost in costs]),
                pair([cost.get("slowest_ms") for cost in costs], 1),
                beside,
            )
        )
    headings += (
        "driver calls",
        "driver, ms",
        "worst step, ms",
        "stalls",
        "slowest, ms",
        "ferro_alloc's time",
    )
    return headings, lines
