"""Memory sleeps and wakes on two devices, together and one by one. Prints the results as JSON."""

import json

import torch

import ferro_alloc
from ferro_alloc import _C

MIB = 1 << 20
ferro_alloc.install()


def filled(mib, value, device):
    return torch.full((mib * MIB // 4,), value, dtype=torch.int32, device=device)


def held():
    return [torch.cuda.memory_reserved(index) // MIB for index in range(2)]


tensors = [filled(20 + 10 * index, index, f"cuda:{index}") for index in range(2)]
torch.cuda.empty_cache()
seen = [held()]
slept = ferro_alloc.sleep()
seen.append([held(), slept.device_bytes // MIB, slept.content_bytes // MIB])
ferro_alloc.wake(device="cuda:1")
seen.append([held(), bool((tensors[1] == 1).all())])
torch.cuda.empty_cache()
ferro_alloc.sleep(device=1, keep="nothing")
seen.append([held(), ferro_alloc.asleep(device=0).content_bytes // MIB])
ferro_alloc.wake()
tensors[1].fill_(5)
seen.append([bool((tensors[0] == 0).all()), bool((tensors[1] == 5).all())])

# One device is too full to wake; the other wakes, and a later call wakes the rest.
ferro_alloc.sleep()
others = filled(1000, 9, "cuda:1")
message = ""
try:
    ferro_alloc.wake()
except torch.OutOfMemoryError as error:
    message = str(error)
seen.append(["on device 1" in message, bool((tensors[0] == 0).all())])
del others
ferro_alloc.wake()
seen.append([bool((tensor == value).all()) for tensor, value in zip(tensors, (0, 5), strict=True)])
# A call fails on the second device; replays of graphs on the first one must still be refused.
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = tensors[0].clone()
errors = []
with ferro_alloc.pin(tensors[1]):
    for call in (lambda: ferro_alloc.sleep(strict=True), lambda: graph.replay()):
        try:
            call()
        except (RuntimeError, ferro_alloc.FerroError) as error:
            errors.append(str(error))
seen.append(["pinned" in errors[0], "asleep" in errors[1]])
ferro_alloc.wake()

# The first copies between the devices give access to the memory of each, while scratch of a group
# is asleep.
pools = [ferro_alloc.graphs.graph_pool_handle() for _ in range(2)]
group = ferro_alloc.graphs.exclusive(*pools)
grouped, kept = [torch.cuda.CUDAGraph() for _ in pools], []
for each, pool in zip(grouped, pools, strict=True):
    with ferro_alloc.tag("group"), torch.cuda.graph(each, pool=pool):
        scratch = tensors[0].clone()
        kept.append(scratch.clone())
        del scratch
slept = ferro_alloc.sleep("group")
seen.append([slept.device_bytes // MIB, slept.content_bytes // MIB])
copies = [tensors[0].to("cuda:1"), tensors[1].to("cuda:0")]
ferro_alloc.wake("group")
for each in grouped:
    each.replay()
torch.cuda.synchronize(0)
seen.append([bool((copies[0] == 0).all()), bool((copies[1] == 5).all())])
seen.append([torch.equal(each, tensors[0]) for each in kept])
for index in range(2):
    _C.check_invariants(index)
print(json.dumps({"seen": seen}))
