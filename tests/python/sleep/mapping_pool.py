"""A MemPool whose allocator maps and unmaps its memory itself, beside memory that sleeps.

Arguments: the allocator in use, and the library (tests/cpp/preload/mapping.cpp). Prints JSON.
"""

import ctypes
import json
import sys

import torch

import ferro_alloc

MIB = 1 << 20
ours = sys.argv[1] != "native"
library = ctypes.CDLL(sys.argv[2])
library.mapping_sleep.restype = library.mapping_wake.restype = ctypes.c_size_t
if ours:
    ferro_alloc.install()


def filled(mib, value):
    return torch.full((mib * MIB // 4,), value, dtype=torch.int32, device="cuda")


def holds(tensor, value):
    return bool((tensor == value).all())


def used():
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return (total - free) // MIB


own = torch.cuda.memory.CUDAPluggableAllocator(sys.argv[2], "mapping_malloc", "mapping_free")
outside = filled(20, 1)
pool = torch.cuda.MemPool(own._allocator)
with torch.cuda.use_mem_pool(pool):
    weights = [filled(20, n) for n in range(3)]
    small = torch.full((100,), 7.0, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    read = weights[1].clone()
places = [t.data_ptr() for t in (*weights, small)]
turns = []
for turn in range(5):
    before = used()
    saved = [weight.cpu() for weight in weights]
    torch.cuda.synchronize()
    slept = library.mapping_sleep() // MIB
    freed = before - used()
    # The other program runs while our memory sleeps too.
    other = filled(100, turn)
    good = [holds(outside, 1), holds(other, turn)]
    del other
    if ours:
        ferro_alloc.sleep()
        ferro_alloc.wake()
    woke = library.mapping_wake(0) // MIB
    for weight, contents in zip(weights, saved, strict=True):
        weight.copy_(contents)
    graph.replay()
    good += [holds(weight, n) for n, weight in enumerate(weights)]
    good += [holds(read, 1), holds(outside, 1)]
    turns.append([slept == freed, woke == slept >= 60, used() == before, all(good)])
found = {"turns": turns, "places": places == [t.data_ptr() for t in (*weights, small)]}
if ours:
    # Tags and names of pools do not take memory of another allocator.
    with ferro_alloc.tag("theirs"), torch.cuda.use_mem_pool(pool):
        more = filled(10, 3)
    slept = ferro_alloc.sleep("theirs", keep="nothing")
    found["not ours"] = [slept.device_bytes, holds(more, 3)]
    del more
del weights, weight, small, read
del graph, pool
torch.cuda.empty_cache()
found["left"] = used() - 20
print(json.dumps(found))
