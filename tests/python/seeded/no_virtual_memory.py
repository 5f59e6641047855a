"""A device without virtual memory management, under the default settings.

Argument: the library of tests/mutants.
"""

import json
import sys

import torch

import ferro_alloc
from ferro_alloc import sim

MIB = 1 << 20
ferro_alloc.install()
import mutant

mutant.plant(sys.argv[1], "no_virtual_memory")

words = torch.arange(MIB, dtype=torch.int32)
small = torch.empty(1000, dtype=torch.uint8, device="cuda")
source = words.pin_memory().to("cuda", non_blocking=True)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = source.clone()
graph.replay()
(device,) = ferro_alloc.status().devices
shared = source.untyped_storage()._share_cuda_()
torch.UntypedStorage._release_ipc_counter_cuda(shared[4], shared[5])
found = {
    "layout": device.layout,
    "status": str(ferro_alloc.status()),
    "segments": sorted(s["total_size"] for s in torch.cuda.memory_snapshot()),
    "intact": bool(torch.equal(result.cpu(), words)),
    "created": "cuMemCreate" in sim.counters(),
    "handle": list(shared[1][:2]),
}
del small, source, result, graph
ferro_alloc.device().empty_cache()
found["allocated_at_end"] = torch.cuda.memory_allocated()
found["reserved_at_end"] = torch.cuda.memory_reserved()
print(json.dumps(found))
