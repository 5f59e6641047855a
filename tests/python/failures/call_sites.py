"""The lines of code in an out-of-memory error: with and without a history, for many blocks."""

import json
import sys
import time

import torch

import ferro_alloc

MIB = 1 << 20
BLOCKS = int(sys.argv[1])
seen = {}


def empty(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def make_weights():
    return [torch.empty(40 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]


def fill_cache():
    return torch.zeros(50 * MIB, dtype=torch.uint8, device="cuda")


def failure():
    start = time.thread_time()
    try:
        empty(1000 * MIB)
    except torch.OutOfMemoryError as error:
        seconds = time.thread_time() - start
        found = ferro_alloc.explain(error)
        return {
            "text": str(error),
            "sites": [[site.line, site.live_bytes, site.blocks] for site in found.call_sites],
            "live": found.live_bytes,
            "seconds": seconds,
        }
    raise AssertionError("there was memory")


def failure_beside(allocate):
    """The failure, with the ratio of its processor time to that of the allocations, which is the
    same on any machine; and the allocated blocks."""
    start = time.thread_time()
    allocated = allocate()
    allocation = time.thread_time() - start
    found = failure()
    found["of allocation"] = found["seconds"] / allocation
    return found, allocated


ferro_alloc.install()
before = empty(100 * MIB)
seen["no history"] = failure()
torch.cuda.memory._record_memory_history(context=None)
seen["no contexts"] = failure()
# With C++ frames, which are not resolved to names.
torch.cuda.memory._record_memory_history(context="state", stacks="all")
kept = [make_weights(), fill_cache(), fill_cache()]
for line in range(1, 21):
    source = "\n" * (line - 1) + f"kept.append(torch.empty({line} << 9, **small))"
    names = {"kept": kept, "torch": torch, "small": {"dtype": torch.uint8, "device": "cuda"}}
    exec(compile(source, "/code/made_up.py", "exec"), names)
seen["history"] = failure()
torch.cuda.memory._record_memory_history(enabled=None)
seen["after it"] = failure()
del kept, names, before

torch.cuda.memory._record_memory_history(context="state", stacks="python", max_entries=1)


def in_many_ways(ways):
    """Allocates with so many different stacks of two lines of code."""
    if ways == 1:
        return [torch.empty(1, device="cuda")]
    left = in_many_ways(ways // 2)
    return left + in_many_ways(ways // 2)


seen["many stacks"], kept = failure_beside(lambda: in_many_ways(1 << 17))
del kept
seen["many blocks"], kept = failure_beside(
    lambda: [torch.empty(1, device="cuda") for _ in range(BLOCKS)]
)
print(json.dumps(seen))
