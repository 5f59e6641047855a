"""Pins memory while other memory moves. Prints what it finds as JSON."""

import json
import sys

import torch

import ferro_alloc
from ferro_alloc import _C

MIB = 1 << 20
seen = {}
ferro_alloc.install()


def empty(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def reserved():
    torch.cuda.empty_cache()
    _C.check_invariants(0)
    return round(torch.cuda.memory_reserved() / MIB)


def refusal(memory):
    try:
        ferro_alloc.pin(memory)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None


tensor = empty(40)
address = tensor.data_ptr()
with ferro_alloc.pin((address, 8 * MIB)) as pinned:
    seen["range"] = [pinned.address == address, pinned.nbytes]
    del tensor
    seen["pages of a freed range"] = reserved()
    again = empty(8)
    seen["serve the next block"] = again.data_ptr() == address
    del again
seen["after"] = reserved()

tensor = empty(40)
kept = ferro_alloc.pin(tensor[: 1 << 20])
del tensor
seen["a tensor is kept alive"] = torch.cuda.memory_allocated() // MIB
kept.unpin()
kept.unpin()
seen["until it is unpinned"] = [torch.cuda.memory_allocated(), reserved()]

pieces = [empty(2) for _ in range(20)]
del pieces
tensor = empty(40)
with ferro_alloc.pin(tensor):
    before = ferro_alloc.status().devices[0].driver_calls["create"]
    tensor.untyped_storage()._share_cuda_()
    seen["no new handle to share it"] = (
        ferro_alloc.status().devices[0].driver_calls["create"] == before
    )

ferro_alloc.uninstall()
native = empty(4)
ferro_alloc.install()
with ferro_alloc.pin(native):
    seen["of the allocator before"] = True
seen["refused"] = [
    refusal(torch.empty(4)).startswith("ValueError: pin() expected a tensor in CUDA memory"),
    refusal((4096, 512)).startswith("ValueError: pin() found no memory of ferro_alloc behind"),
    refusal("tensor").startswith("TypeError: pin() expected a tensor or a pair"),
    refusal((address, 0)).startswith("TypeError"),
]
with ferro_alloc.pin(torch.empty(0, device="cuda")) as nothing:
    seen["empty"] = nothing.nbytes
json.dump(seen, sys.stdout)
