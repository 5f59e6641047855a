"""The number of blocks in use in a device's view, compared with PyTorch's statistics."""

import json

import torch

import ferro_alloc

before = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
ferro_alloc.install()
view = ferro_alloc.device()


def blocks():
    assert view.blocks == torch.cuda.memory_stats()["allocation.all.current"]
    return view.blocks


seen = {"of the previous allocator": blocks()}
kept = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (100, 3 << 20, 30 << 20)]
seen["allocated"] = blocks()
del kept[1]
seen["freed"] = blocks()
kept[-1].record_stream(torch.cuda.Stream())
del kept[-1]
seen["waiting for a stream"] = blocks()
print(json.dumps(seen))
