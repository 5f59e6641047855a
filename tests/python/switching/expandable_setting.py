"""Prints as JSON what PyTorch's settings say about memory while allocators change."""

import json
import sys

import torch

import ferro_alloc


def said():
    return torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"]


def set_settings(settings):
    torch._C._accelerator_setAllocatorSettings(settings)


when = {"at first": said()}
ferro_alloc.install()
when["installed"] = said()
ferro_alloc.uninstall()
when["uninstalled"] = said()
torch.ones(1, device="cuda")
ferro_alloc.install()
when["installed late"] = said()
set_settings("roundup_power2_divisions:4")
when["other settings changed"] = said()
divisions = torch.cuda.memory._snapshot()["allocator_settings"]["roundup_power2_divisions"]
ferro_alloc.uninstall()
when["uninstalled again"] = said()
ferro_alloc.install()
assert (
    divisions == torch.cuda.memory._snapshot()["allocator_settings"]["roundup_power2_divisions"]
), "other settings stay"
set_settings("expandable_segments:False")
when["the program said no"] = said()
ferro_alloc.uninstall()
ferro_alloc.install()
when["the program's setting counts"] = said()
set_settings("")
ferro_alloc.uninstall()
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    kept = [torch.empty(1 << 20, device="cuda")]
ferro_alloc.install()
with torch.cuda.use_mem_pool(pool):
    torch.empty(60 << 20, dtype=torch.uint8, device="cuda")
    kept += [torch.empty(20 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
when["a pool of the allocator before"] = [
    segment["is_expandable"] for segment in pool.snapshot() if segment["total_size"] > 20 << 20
]
when["and after"] = said()
del kept[2]
del pool
torch.cuda.empty_cache()
json.dump(when, sys.stdout)
