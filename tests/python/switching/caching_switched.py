"""Caching is switched off and on around switches of the allocator. Prints JSON.

Arguments: the steps, of "on", "off", "install" and "uninstall". The last word of a program without
ferro_alloc is "native": the switches of the allocator do nothing then.
"""

import json
import sys

import torch

import ferro_alloc

MIB = 1 << 20
*steps, last = sys.argv[1:]
torch.cuda.init()
small = torch.empty(1, device="cuda")


def is_cached():
    before = torch.cuda.memory_allocated()
    tensor = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    return torch.cuda.memory_allocated() - before >= tensor.nbytes


seen = []
for step in steps:
    if step in ("on", "off"):
        torch.cuda.memory.caching_allocator_enable(step == "on")
    elif last != "native":
        getattr(ferro_alloc, step)()
    seen.append(is_cached())
print(json.dumps({"cached": seen}))
