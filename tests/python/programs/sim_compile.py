"""torch.compile with CUDA graph trees, forward and backward, over two shapes."""

import json

import torch
from torch import nn

from torch._inductor.async_compile import AsyncCompile

from ferro_alloc import sim

# Once Inductor's own processes are ready they would compile the kernels, and they have no GPU.
torch._inductor.config.force_disable_caches = True
AsyncCompile.wait_pool_ready()
model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).cuda()
compiled = torch.compile(model, mode="reduce-overhead", dynamic=False)
launches = sim.counters().get("cuGraphLaunch", sim.CallCount()).calls
for length in (8, 16):
    for _ in range(4):
        model.zero_grad()  # gradients live in a graph's memory, which the next replay takes
        torch.compiler.cudagraph_mark_step_begin()
        compiled(torch.zeros(length, 64, device="cuda", requires_grad=True)).sum().backward()
torch.cuda.synchronize()
replayed = sim.counters()["cuGraphLaunch"].calls - launches
print(json.dumps({"graph_launches": replayed, "unsupported": sim.unsupported()}))
