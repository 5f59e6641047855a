"""Forks repeatedly while threads allocate and free; the children drop inherited objects.

Arguments: the allocator, and the number of children. Prints the errors of the children, and waits
for one that hangs.
"""

import atexit
import gc
import json
import os
import random
import sys
import threading
from collections.abc import Callable

from tests.python.feature_checks import MIB, error_of, take

import torch

THREADS = 4

stopping = threading.Event()
side = torch.cuda.Stream()
graph, pool = torch.cuda.CUDAGraph(), torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    inherited = [take(MIB), take(3 * MIB)]
with torch.cuda.graph(graph):
    inherited.append(inherited[0].clone())
inherited += [take(size) for size in (512, 4096, MIB, 3 * MIB, 30 * MIB)]
inherited[0].record_stream(side)


def allocate_and_free(seed: int) -> None:
    """Uses the default stream, like the inherited tensors."""
    draw = random.Random(seed)
    kept: list[torch.Tensor] = []
    while not stopping.is_set():
        kept += [take(draw.choice((512, 4096, MIB, 3 * MIB))) for _ in range(10)]
        if draw.random() < 0.1:
            kept[-1].record_stream(side)
        draw.shuffle(kept)
        del kept[draw.randrange(20) :]
        if draw.random() < 0.05:
            torch.cuda.empty_cache()
            torch.cuda.memory_stats()


def drop_graph() -> None:
    global graph
    del graph


def in_child() -> dict[str, str]:
    """Makes the calls that a child may make; returns the errors of those that fail."""
    calls: dict[str, Callable[[], object]] = {
        "memory_stats": torch.cuda.memory_stats,
        "empty_cache": torch.cuda.empty_cache,
        "zeros": lambda: torch.zeros(3, device="cuda"),
        "raw": lambda: torch.cuda.caching_allocator_alloc(MIB, 0, side),
        "below torch": lambda: torch._C._cuda_cudaCachingAllocator_raw_alloc(MIB, 0),
        "statistics": lambda: torch._C._cuda_memoryStats(0),
        "emptying": lambda: torch._C._cuda_emptyCache(),
        "end of pool": lambda: torch._C._cuda_endAllocateToPool(0, pool.id),
        "release of pool": lambda: torch._C._cuda_releasePool(0, pool.id),
        "free": inherited.clear,
        "graph": drop_graph,
        "exit": atexit._run_exitfuncs,
        "collect": gc.collect,
    }
    only = sys.argv[3:]
    errors = {
        name: " ".join(error_of(call)).strip()
        for name, call in calls.items()
        if not only or name in only
    }
    return {name: error for name, error in errors.items() if error}


children: dict[int, int] = {}
"""The descriptor of each child's report."""
threads = [threading.Thread(target=allocate_and_free, args=(seed,)) for seed in range(THREADS)]
for thread in threads:
    thread.start()
for _ in range(int(sys.argv[2])):
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, json.dumps(in_child()).encode())
        os._exit(0)
    os.close(writes)
    children[child] = reads
stopping.set()
for thread in threads:
    thread.join()

errors = []
for child, reads in children.items():
    _, status = os.waitpid(child, 0)
    report = os.read(reads, 1 << 16)
    errors.append(json.loads(report) if report else {"ended": str(status)})
distinct = sorted({json.dumps(found) for found in errors})
print(json.dumps({"errors": [json.loads(found) for found in distinct]}))
