"""torch.compile with CUDA graph trees: forward and backward, two shapes, a branch.

Runs under ferro_alloc if the first argument names it, otherwise under PyTorch's own allocator.
"""

import json
import os
import sys

import ferro_alloc

# Without this setting cuBLAS may choose another algorithm in each run.
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
if sys.argv[1] == "ferro_alloc":
    ferro_alloc.install()

import torch
from torch import nn

import torch._inductor.config

from ferro_alloc import sim

torch._inductor.config.force_disable_caches = True
# Inductor's worker processes have no GPU.
torch._inductor.config.compile_threads = 1
width = 256
model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)).cuda()
compiled = torch.compile(model, mode="reduce-overhead", dynamic=False)
launches = sim.counters().get("cuGraphLaunch", sim.CallCount()).calls
for rows in (1024, 2048):
    for _ in range(4):
        model.zero_grad()  # gradients live in a graph's memory, which the next replay takes
        torch.compiler.cudagraph_mark_step_begin()
        compiled(torch.zeros(rows, width, device="cuda", requires_grad=True)).sum().backward()
with torch.no_grad():
    for step in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        result = compiled(torch.zeros(1024, width, device="cuda"))
        if step % 2:
            # The graph is recorded once more, as its own successor.
            result = compiled(result)
torch.cuda.synchronize()
replayed = sim.counters()["cuGraphLaunch"].calls - launches
print(
    json.dumps(
        {
            "graph_launches": replayed,
            "unsupported": sim.unsupported(),
            "peak_reserved": torch.cuda.max_memory_reserved(),
            "reserved": torch.cuda.memory_reserved(),
        }
    )
)
