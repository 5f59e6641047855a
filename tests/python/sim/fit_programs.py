"""Programs as a user might have, as text: `python -m ferro_alloc simulate` runs each."""

TRAIN = """\
import sys
import torch
from torch import nn

batch = int(sys.argv[sys.argv.index("--batch") + 1]) if "--batch" in sys.argv else 8
model = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(8))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    loss = model(torch.randn(batch * 256, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
stats = torch.cuda.memory_stats()
print(stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"])
"""

# The peak is in the first half; the peak that the program itself reads afterwards is small.
RESETS = """\
import torch

x = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
peak = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
del x
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
torch.cuda.reset_accumulated_memory_stats()
torch.accelerator.reset_peak_memory_stats()
y = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
assert torch.cuda.max_memory_allocated() == 1 << 20
print(*peak)
"""

CONVOLUTIONS = """\
import torch
from torch import nn

model = nn.Sequential(
    *(nn.Sequential(nn.Conv2d(3 if i == 0 else 64, 64, 3), nn.BatchNorm2d(64)) for i in range(6))
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(2):
    model(torch.randn(8, 3, 128, 128, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

# An image and a result of 16 MiB each; the preferred engine of cuDNN needs a workspace of 32 MiB.
CONVOLVES = """\
import sys
import torch

batch = int(sys.argv[sys.argv.index("--batch") + 1]) if "--batch" in sys.argv else 1
# One that was measured on a GPU: all tensors are copied into the workspace.
image = torch.zeros(batch, 64, 256, 256, device="cuda")
weight = torch.zeros(64, 64, 3, 3, device="cuda", requires_grad="--train" in sys.argv)
result = torch.nn.functional.conv2d(image, weight, padding=1)
if "--train" in sys.argv:
    result.backward(result.detach())
if "--more" in sys.argv:
    more = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
print(*result.shape)
"""

RUNS_OUT_IN_BACKWARD = """\
import torch

def train():
    x = torch.zeros(64, 1 << 20, device="cuda", requires_grad=True)
    y = (x * 2).sin().cos()
    y.sum().backward()

train()
"""

RUNS_OUT_IN_FORWARD = """\
import torch
from torch import nn

model = nn.Sequential(*(nn.Linear(2048, 2048, device="cuda") for _ in range(64)))
x = torch.randn(16384, 2048, device="cuda")
model(x.relu()).sum().backward()
"""

TAGGED = """\
import torch
from ferro_alloc import tag

with tag("model"):
    model = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    with tag("kv cache"):
        cache = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
rest = torch.empty(1 << 27, dtype=torch.uint8, device="cuda")
too_much = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
"""

CATCHES = """\
import torch

batch = 64
while True:
    try:
        x = torch.empty(batch, 1 << 27, dtype=torch.uint8, device="cuda")
        break
    except torch.OutOfMemoryError:
        batch //= 2
print("ended with", batch)
"""

ENVIRONMENT = """\
import os
import torch

x = torch.empty(int(os.environ["BATCH_SIZE"]), 100 << 20, dtype=torch.uint8, device="cuda")
"""

# A stand-in for the cache of transformers has methods with the same names.
GENERATES = """\
import torch
from transformers.cache_utils import Cache

cache = Cache()
with torch.no_grad():
    for _ in range(8):
        new = torch.empty(4, 64, 1024, 128, device="cuda")
        cache.update(new, new)
    del new
"""

CACHE_UTILS = """\
import torch


class Cache:
    def __init__(self):
        self.keys = self.values = None

    def update(self, keys, values):
        if self.keys is None:
            self.keys, self.values = keys.clone(), values.clone()
        else:
            self.keys = torch.cat([self.keys, keys], dim=2)
            self.values = torch.cat([self.values, values], dim=2)
        return self.keys, self.values
"""

GRAPHS = """\
import torch

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = torch.zeros(64 << 20, device="cuda")
"""

# The recording must not disturb snapshots, checkpoints with hooks, transforms, or a failing exit.
MANY_PARTS = """\
import sys
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(6)).cuda()
x = torch.randn(4096, 1024, device="cuda", requires_grad=True)
calls = []
for layer in layers:
    layer.register_forward_pre_hook(lambda *_: calls.append(1))
y = x
for layer in layers:
    y = checkpoint(layer, y, use_reentrant=False)
y.sum().backward()
assert len(calls) == 12, len(calls)  # each layer once, and once more in the backward pass
assert torch.cuda.memory._snapshot()["segments"]
assert torch.func.grad(lambda a: (a * a).sum())(torch.ones(8, device="cuda")).shape == (8,)
torch.cuda.memory._record_memory_history()
kept = torch.empty(1 << 20, device="cuda")
assert any(e["action"] == "alloc" for e in torch.cuda.memory._snapshot()["device_traces"][0])
sys.exit(5)
"""
