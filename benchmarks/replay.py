"""Replays recorded traces on the allocator's core, beside what PyTorch's allocators did on a GPU.

The traces (benchmarks/traces) are of real training and inference; the replay runs them through the
same code that serves PyTorch, over the simulated driver, in seconds and without torch. It shows
what a change of policy does to fragmentation and what it costs in driver time; "slowest" is that of
the slowest allocation in the second half.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
TRACES = ROOT / "benchmarks" / "traces"
TREE = ROOT / "build" / "cpp-release"
PAGE_SIZES = (2, 4)  # MiB

# Peak reserved / peak allocated on an H100 where the traces were recorded: native, expandable.
ON_GPU: Mapping[str, tuple[float, float]] = {
    "full_varlen": (1.552, 1.098),
    "moe": (1.269, 1.033),
    "offload": (1.362, 1.145),
    "generate": (1.303, 1.081),
}
# Of fsdp_like the memory that waits for another stream counts as used.
ON_GPU_ACTIVE: Mapping[str, tuple[float, float]] = {"fsdp_like": (1.138, 1.096)}

# `Event` of replay.cpp.
EVENT = np.dtype(
    [("size", "<i8"), ("block", "<i4"), ("kind", "u1"), ("stream", "u1"), ("deferred", "<u2")]
)
FREE_REQUESTED, FREE_COMPLETED = 1, 2


def build() -> Path:
    """The replay program, built beside the C++ tests, with which it shares the libraries."""
    cmake = shutil.which("cmake")
    if cmake is None:
        raise SystemExit("cmake was not found: it is needed to build the replay")
    include = importlib.import_module("setup").cuda_include(13)  # it knows where CUDA is
    options = ["-DFERRO_BUILD_BENCHMARKS=ON", f"-DFERRO_CUDA_INCLUDE={include}"]
    run([cmake, "--preset", "release", *options])
    jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))
    run([cmake, "--build", str(TREE), "--target", "replay", "-j", jobs])
    return TREE / "benchmarks" / "replay"


def run(command: Sequence[str]) -> None:
    """Runs it silently; what it printed is shown when it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


def to_events(trace: Mapping[str, NDArray[Any]], limit: int | None) -> NDArray[Any]:
    """The arrays of a recorded trace as an array of `EVENT`; its first `limit` events."""
    kind, block = trace["kind"][:limit], trace["id"][:limit]
    events = np.zeros(len(kind), EVENT)
    events["size"], events["block"], events["kind"] = trace["size"][:limit], block, kind
    events["stream"] = trace["stream"][:limit]
    # A block that nothing else used was free as soon as that was asked for.
    at_once = np.zeros(len(kind), bool)
    at_once[:-1] = (kind[1:] == FREE_COMPLETED) & (block[1:] == block[:-1])
    events["deferred"] = (kind == FREE_REQUESTED) & ~at_once
    return events


def replay(program: Path, name: str, page_mib: int, limit: int | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, np.load(TRACES / f"{name}.npz") as trace:
        path = Path(folder) / "trace"
        to_events(trace, limit).tofile(path)
        done = subprocess.run(
            [str(program), str(path), str(page_mib)], capture_output=True, text=True, timeout=300
        )
    if done.returncode != 0:
        raise SystemExit(f"{name}: {done.stderr.strip()}")
    result: dict[str, Any] = json.loads(done.stdout)
    result["trace"] = name
    return result


def driver_ms(calls: Mapping[str, Mapping[str, float]]) -> float:
    return sum(call["microseconds"] for call in calls.values()) / 1e3


def calls_of(result: Mapping[str, Any], name: str) -> int:
    return int(result["calls"].get(name, {"calls": 0})["calls"])


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
    parser.add_argument("--program", type=Path, help="a replay program that is built already")
    parser.add_argument("--smoke", action="store_true", help="the first 5,000 events only")
    parser.add_argument("--output", type=Path, help="where the results go, as JSON")
    options = parser.parse_args(argv)
    program = options.program or build()
    limit = 5_000 if options.smoke else None
    results = [
        replay(program, name, page, limit) for name in options.traces for page in options.pages
    ]
    show(results)
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
