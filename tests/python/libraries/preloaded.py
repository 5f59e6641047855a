"""The calls that reach a preloaded library which replaces cudaMalloc and cudaFree.

Argument: `native`, `segments`, or `pages`. Prints how many calls each kind of request makes.
"""

import ctypes
import json
import sys

import torch

import ferro_alloc

MIB = 1 << 20
if sys.argv[1] != "native":
    ferro_alloc.install(ferro_alloc.Config(layout=sys.argv[1]))
process = ctypes.CDLL(None)


def calls():
    return process.preloaded_allocations(), process.preloaded_releases()


def counted(request):
    before = calls()
    tensor = request()
    kept = calls()
    del tensor
    torch.cuda.empty_cache()
    return [kept[0] - before[0], calls()[1] - before[1]]


def plain():
    return torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")


def not_split():
    with torch.cuda.use_mem_pool(torch.cuda.MemPool(no_split=True)):
        return plain()


def too_much():
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        # The exception also cleared the runtime's last error.
        torch.cuda.synchronize()
        return "out of memory"
    return None


torch.cuda.init()
found = {"plain": counted(plain), "not split": counted(not_split), "too much": too_much()}
torch.cuda.memory._set_allocator_settings("expandable_segments:False")
found["switched off"] = counted(plain)
print(json.dumps(found))
