"""torch.compile with CUDA graph trees: forward and backward, two shapes, a branch.

Under the allocator that the first argument names.
"""

import json
import sys

from benchmarks.harness.processes import use_allocator

use_allocator(sys.argv[1], simulated=False)

import torch
from torch import nn

from torch._inductor.async_compile import AsyncCompile

from ferro_alloc import sim

# Once Inductor's own processes are ready they would compile the kernels, and they have no GPU.
torch._inductor.config.force_disable_caches = True
AsyncCompile.wait_pool_ready()
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
            # Recorded once more, behind itself.
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
