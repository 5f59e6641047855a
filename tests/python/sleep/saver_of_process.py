"""With TMS_INIT_ENABLE=1 all memory of the process is paused, except that of disable().

Prints the results as JSON. Argument: whether contents are kept (TMS_INIT_ENABLE_CPU_BACKUP).
"""

import json
import os
import sys

import torch

import ferro_alloc
from ferro_alloc import _C
from ferro_alloc.memory_saver import torch_memory_saver as saver

MIB = 1 << 20
KEPT = sys.argv[1] == "1"
os.environ["TMS_INIT_ENABLE"] = "1"
os.environ["TMS_INIT_ENABLE_CPU_BACKUP"] = sys.argv[1]
ferro_alloc.install()


def on_device():
    free, total = torch.cuda.mem_get_info()
    return (total - free) // MIB


def filled(mib, value):
    return torch.full((mib * MIB // 4,), value, dtype=torch.int32, device="cuda")


def holds(tensor, value):
    return bool((tensor == value).all())


model = torch.nn.Linear(256, 256).cuda()
model(torch.randn(4, 256, device="cuda")).sum().backward()
gradient = model.weight.grad.clone()
plain = filled(20, 1)
with saver.region("kept", enable_cpu_backup=True):
    kept = filled(20, 2)
with saver.region("dropped"):
    dropped = filled(20, 3)
with saver.disable():
    apart = filled(20, 4)
    small = torch.full((100,), 5.0, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    scratch = plain.clone()
    result = scratch.clone()
    del scratch
graph.replay()
seen = []
original = _C.sleep
for tag in (None, "default"):
    calls = []
    _C.sleep = lambda *given, calls=calls: calls.append(given) or original(*given)
    saver.pause(tag)
    assert len(calls) == 1, calls
    _C.sleep = original
    left = torch.cuda.memory_reserved() // MIB
    awake = [holds(apart, 4), holds(small, 5.0)]
    with saver.disable():
        beside = filled(10, 6)
        awake.append(holds(beside, 6))
    del beside
    saver.resume(tag)
    woken = [holds(kept, 2)]
    if KEPT:
        woken += [holds(plain, 1), holds(result, 1), torch.equal(model.weight.grad, gradient)]
    plain.fill_(1)
    graph.replay()
    woken.append(holds(result, 1))
    seen.append([left, awake, woken])
torch.cuda.empty_cache()
full = on_device()
saver.pause("kept")
seen.append([full - on_device(), holds(plain, 1)])
saver.resume("kept")
seen.append(holds(kept, 2))
# The program ends with paused memory.
saver.pause()
print(json.dumps(seen))
