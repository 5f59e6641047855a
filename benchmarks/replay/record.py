"""Records a trace of a workload's requests on the simulated GPU, under the native allocator.

    python -m benchmarks.replay.record state_space

writes `benchmarks/replay/traces/state_space.npz`. Requests and lifetimes are those of a GPU; times
are not, so the trace has none.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.processes import use_allocator
from benchmarks.replay.program import ALLOCATED, FREE_COMPLETED, FREE_REQUESTED, TRACES

KINDS = {
    "alloc": ALLOCATED,
    "free_requested": FREE_REQUESTED,
    "free_completed": FREE_COMPLETED,
}


def to_trace(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The arrays of a trace (`traces/README.md`) from events of PyTorch's memory history."""
    numbers: dict[int, int] = {}
    streams: dict[int, int] = {}
    rows = []
    made = 0
    for event in events:
        kind = KINDS.get(event["action"])
        if kind is None:
            continue
        if kind == ALLOCATED:
            numbers[event["addr"]] = made
            made += 1
        stream = streams.setdefault(event["stream"], len(streams))
        rows.append((kind, numbers[event["addr"]], event["size"], stream))
    kinds, blocks, sizes, numbers_of_streams = zip(*rows, strict=True)
    return {
        "kind": np.array(kinds, np.uint8),
        "id": np.array(blocks, np.int32),
        "size": np.array(sizes, np.int64),
        "stream": np.array(numbers_of_streams, np.uint8),
    }


def record(name: str, steps: int | None, smoke: bool) -> dict[str, Any]:
    use_allocator("native", simulated=True, backing=False)
    import torch

    from benchmarks.models.mixed_lifetimes import MIXED_LIFETIMES
    from benchmarks.models.workloads import WORKLOADS

    workload = {**WORKLOADS, **MIXED_LIFETIMES}[name]
    sizes = {**workload.sizes, **(workload.smoke if smoke else {})}
    if steps is not None:
        sizes["steps"] = steps
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(context=None, max_entries=sys.maxsize >> 16)
    workload.run(lambda step, loss: None, **sizes)
    torch.cuda.synchronize()
    return to_trace(torch.cuda.memory._snapshot()["device_traces"][0])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--smoke", action="store_true", help="tiny: does it run?")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(argv)
    trace = record(options.workload, options.steps, options.smoke)
    output = options.output or TRACES / f"{options.workload}.npz"
    np.savez_compressed(output, **trace)
    live = np.cumsum(np.where(trace["kind"] == ALLOCATED, trace["size"], 0))[-1]
    print(f"{output}: {len(trace['kind']):,} events, {live / 1e9:.1f} GB requested in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
