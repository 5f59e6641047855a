"""Prints as JSON which memory of a program other processes can open by a handle."""

import contextlib
import ctypes
import json
import sys

import torch

import ferro_alloc

cudart = ctypes.CDLL("libcudart.so.13")


def share(tensor):
    """The result of cudaIpcGetMemHandle."""
    handle = (ctypes.c_byte * 64)()
    return cudart.cudaIpcGetMemHandle(handle, ctypes.c_void_p(tensor.data_ptr()))


@contextlib.contextmanager
def plain_allocations():
    """Allocates plain memory as programs do that know expandable segments."""
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    try:
        yield
    finally:
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


how = sys.argv[1]
ferro_alloc.install(
    ferro_alloc.Config(graph_layout="segments" if how == "graph_layout" else "pages")
)
before = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
source = torch.arange(1 << 20, dtype=torch.float32).cuda()
graph = torch.cuda.CUDAGraph()
around = plain_allocations() if how == "setting" else contextlib.nullcontext()
with around, torch.cuda.graph(graph):
    first = source.clone()
    second = first.clone()
source.copy_(torch.full((1 << 20,), 7.0))
graph.replay()
torch.cuda.synchronize()
after = torch.empty(1 << 20, device="cuda")
pools = {}
for segment in torch.cuda.memory_snapshot():
    kind = "default" if tuple(segment["segment_pool_id"]) == (0, 0) else "graph"
    pools.setdefault(kind, set()).add(segment["is_expandable"])
held = torch.cuda.memory_reserved()
found = {
    "shared": {"before": share(before), "graph": share(second), "after": share(after)},
    "expandable": {kind: sorted(said) for kind, said in sorted(pools.items())},
    "replayed": bool((second.cpu() == 7).all()),
}
del first, second, graph
torch.cuda.empty_cache()
found["given back"] = torch.cuda.memory_reserved() < held
json.dump(found, sys.stdout)
