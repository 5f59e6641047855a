"""Seven situations in which the memory of CUDA graphs surprises, each as a small program.

    python -m benchmarks.situations.separate_pools [--mib 256]

runs one under the current allocator. Each program has two or three *ways* to do the same work; a
way takes the bytes of its largest tensor and returns the graphs and tensors that stay alive. The
program prints one line of JSON: the `Figures` of each way, by its name.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

NAMES = (
    "separate_pools",
    "temporary_after_capture",
    "fragments_of_warm_up",
    "growing_captures",
    "record_stream_in_capture",
    "gradients_of_another_stream",
    "free_during_capture",
)
# The memory of a graph under cudaMallocAsync is the driver's: torch counts and lists none of it.
ALLOCATORS = ("native", "expandable", "ferro_alloc")
MIB = 256
SMOKE_MIB = 32

Way = Callable[[int], list[object]]
Row = Sequence[str]


@dataclass
class Figures:
    """The memory of one way, in bytes above those held before it."""

    peak_allocated: int
    peak_reserved: int
    reserved: int
    """At the end of the way, with its result alive."""
    reserved_after_empty_cache: int
    graph_pools: int
    """The part of that in the pools of graphs, which nothing else can use."""
    left: int
    """The bytes still reserved after graphs and tensors are destroyed and the cache is empty."""


def measure(way: Way, size: int, release: Callable[[], None] = lambda: None) -> Figures:
    """`release` is called after the result of the way is destroyed, to free other references."""
    from torch import cuda

    _empty_cache()
    allocated, reserved = cuda.memory_allocated(), cuda.memory_reserved()
    cuda.reset_peak_memory_stats()
    alive = way(size)
    cuda.synchronize()
    peaks = cuda.max_memory_allocated() - allocated, cuda.max_memory_reserved() - reserved
    at_end = cuda.memory_reserved() - reserved
    _empty_cache()
    emptied, pools = cuda.memory_reserved() - reserved, _bytes_in_graph_pools()
    alive.clear()
    release()
    _empty_cache()
    return Figures(*peaks, at_end, emptied, pools, cuda.memory_reserved() - reserved)


def report(*ways: Way) -> None:
    """The whole program: measures the ways and prints the line."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--mib", type=int, default=MIB, help="size of the largest tensor")
    size = parser.parse_args().mib << 20
    print(json.dumps({way.__name__: asdict(measure(way, size)) for way in ways}), flush=True)


def rows(records: Sequence[Mapping[str, Any]]) -> tuple[Row, list[Row]]:
    """Headings, and one row for each way of each situation."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for record in records:
        for way, figures in record["ways"].items():
            keys = ("peak_reserved", "reserved_after_empty_cache", "graph_pools")
            text = " / ".join(f"{figures[key] / (1 << 20):,.0f}" for key in keys)
            cells.setdefault((record["situation"], way), {})[record["allocator"]] = text
    names = [name for name in ALLOCATORS if any(name in found for found in cells.values())]
    return ("situation", "way", *names), [
        (*key, *(found.get(name, "-") for name in names)) for key, found in cells.items()
    ]


def _bytes_in_graph_pools() -> int:
    from torch import cuda

    return sum(
        segment["total_size"]
        for segment in cuda.memory_snapshot()
        if tuple(segment["segment_pool_id"]) != (0, 0)
    )


def _empty_cache() -> None:
    import torch

    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
