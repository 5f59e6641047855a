"""Replays recorded traces on the allocator's core, compared with PyTorch's allocators on a GPU.

The traces (benchmarks/replay/traces) are of real training and inference, on a GPU or on the
simulated one (benchmarks/replay/record.py). The replay runs them through the same code that serves
PyTorch, over the simulated driver, in seconds and without torch. It shows the effect of a change of
policy on fragmentation and driver time; "slowest" is the driver time of the slowest allocation in
the second half.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness.cpp_program import build
from benchmarks.replay.program import (
    ON_GPU,
    ON_GPU_ACTIVE,
    TRACES,
    calls_of,
    driver_ms,
    replay,
)

PAGE_SIZES = (2, 4)  # MiB


def show(results: Sequence[Mapping[str, Any]]) -> None:
    table = Table("trace", title="peak reserved / peak allocated, and the driver's modelled time")
    sizes = ("page, MiB", "allocated, GB", "native", "expandable", "ferro_alloc")
    costs = (
        "create",
        "map",
        "unmap",
        "release",
        "driver, ms",
        "2nd half",
        "slowest",
        "waits",
        "ns/event",
    )
    for column in (*sizes, *costs):
        table.add_column(column, justify="right")
    for result in results:
        name = result["trace"]
        active = name in ON_GPU_ACTIVE
        used = result["peak_active" if active else "peak_allocated"]
        stored = ON_GPU_ACTIVE.get(name) or ON_GPU.get(name)
        total = driver_ms(result["calls"])
        table.add_row(
            name + (" (active)" if active else ""),
            str(result["page_bytes"] >> 20),
            f"{used / 1e9:.2f}",
            *(f"{ratio:.3f}" for ratio in stored or ()),
            *(["-", "-"] if stored is None else []),
            f"{result['peak_reserved'] / used:.3f}",
            *(
                f"{calls_of(result, f'cuMem{call}'):,}"
                for call in ("Create", "Map", "Unmap", "Release")
            ),
            f"{total:.1f}",
            f"{total - driver_ms(result['calls_at_half']):.1f}",
            f"{result['slowest_microseconds'] / 1e3:.1f}",
            str(result["host_waits"]),
            f"{result['nanoseconds_per_event']:.0f}",
        )
    Console().print(table)


def main(argv: Sequence[str] | None = None) -> int:
    names = sorted(path.stem for path in TRACES.glob("*.npz"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", nargs="+", choices=names, default=names)
    parser.add_argument("--pages", nargs="+", type=int, default=list(PAGE_SIZES), metavar="MIB")
    parser.add_argument("--passes", type=int, default=1, help="how often each runs in one process")
    parser.add_argument("--program", type=Path, help="a replay program that is built already")
    parser.add_argument("--smoke", action="store_true", help="the first 5,000 events only")
    parser.add_argument("--output", type=Path, help="where the results go, as JSON")
    options = parser.parse_args(argv)
    program = options.program or build("replay")
    limit = 5_000 if options.smoke else None
    results = [
        replay(program, name, page, limit, options.passes)
        for name in options.traces
        for page in options.pages
    ]
    show(results)
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
