"""A process that replays a plan under one allocator on a simulated GPU: `-m` with a file.

Its last line on stdout is JSON with the fields of `_replay.Outcome`.
"""

from __future__ import annotations

import ctypes
import json
import pickle
import sys
from pathlib import Path
from typing import Any

from ferro_alloc import sim
from ferro_alloc.snapshots import _plan

SAMPLES = 600
_STREAMS_OF_TORCH = 32


def main(path: str, allocator: str, memory: str) -> None:
    steps = pickle.loads(Path(path).read_bytes())
    sim.activate(gpu="h100", memory=memory, backing=False)
    import torch

    if allocator == "ferro_alloc":
        import ferro_alloc

        ferro_alloc.install()
    torch.cuda.synchronize()  # makes the context that streams need, and no tensor
    print(json.dumps(replay(torch, steps)))


def replay(torch: Any, steps: _plan.Plan) -> dict[str, Any]:
    allocate = torch._C._cuda_cudaCachingAllocator_raw_alloc
    free = torch._C._cuda_cudaCachingAllocator_raw_delete
    streams = [torch.cuda.default_stream(), *_new_streams(torch, len(steps.streams) - 1)]
    handles = [stream.cuda_stream for stream in streams]
    current = 0
    pools = [None, *(torch.cuda.MemPool() for _ in range(1, steps.pools))]
    held = [0] * steps.slots
    samples: list[tuple[int, int]] = []
    every = max(len(steps.kind) // SAMPLES, 1)
    reserved_at_start = failed_at = -1
    columns = zip(steps.kind, steps.slot, steps.size, steps.stream, steps.pool, strict=True)
    for number, (kind, slot, size, stream, pool) in enumerate(columns):
        if kind == _plan.ALLOCATE:
            if stream != current:
                # As in the program: ferro_alloc knows which streams work is given to.
                torch.cuda.set_stream(streams[stream])
                current = stream
            try:
                if pool:
                    with torch.cuda.use_mem_pool(pools[pool]):
                        held[slot] = allocate(size, handles[stream])
                else:
                    held[slot] = allocate(size, handles[stream])
            except torch.OutOfMemoryError:
                failed_at = max(steps.event[number], 0)
                break
        elif kind == _plan.FREE:
            # Of nothing where the trace has a free and no block.
            if held[slot]:
                free(held[slot])
                held[slot] = 0
        elif kind == _plan.EMPTY:
            torch.cuda.empty_cache()
        else:
            reserved_at_start = torch.cuda.memory_reserved()
            torch.cuda.reset_peak_memory_stats()
        if number % every == 0 and steps.event[number] >= 0:
            samples.append((steps.event[number], torch.cuda.memory_reserved()))
    stats = torch.cuda.memory_stats()
    return {
        "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
        "peak_active_bytes": stats["active_bytes.all.peak"],
        "reserved_at_start_bytes": reserved_at_start,
        "cache_flushes": stats["num_alloc_retries"],
        "failed_at_event": failed_at,
        "samples": samples,
    }


def _new_streams(torch: Any, count: int) -> list[Any]:
    """Distinct ones: torch's own, of which it has 32 for a device, and beyond them the driver's."""
    own = [torch.cuda.Stream() for _ in range(min(count, _STREAMS_OF_TORCH))]
    others = [torch.cuda.ExternalStream(_driver_stream()) for _ in range(count - len(own))]
    return [*own, *others]


def _driver_stream() -> int:
    stream = ctypes.c_void_p()
    driver = ctypes.CDLL("libcuda.so.1")
    if driver.cuStreamCreate(ctypes.byref(stream), 1) != 0:
        raise RuntimeError("the simulated driver made no stream")
    return int(stream.value or 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
