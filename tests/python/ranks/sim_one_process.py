"""Several ranks in one process: one thread for all, and a thread for each. Prints their results."""

import json
import sys
import threading

import torch
import torch.distributed as dist
from torch import nn

DEVICES = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
found = {}

# ncclCommInitAll creates the communicators of all ranks.
tensors = [torch.tensor([1.0, 2.0], device=device) * (1 + device.index) for device in DEVICES]
torch.cuda.nccl.all_reduce(tensors)
found["sums"] = [tensor.tolist() for tensor in tensors]

torch.manual_seed(0)
layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
inputs = torch.randn(4 * len(DEVICES), 8)
layers(inputs).square().sum().backward()
expected = [parameter.grad.clone() for parameter in layers.parameters()]
layers.zero_grad()
shared = nn.DataParallel(layers.cuda(), device_ids=DEVICES)
shared(inputs.cuda()).square().sum().backward()
found["gradients agree"] = [
    torch.allclose(parameter.grad.cpu(), gradient, atol=1e-5)
    for parameter, gradient in zip(layers.parameters(), expected, strict=True)
]


def rank(device, store, results):
    torch.cuda.set_device(device)
    group = dist.ProcessGroupNCCL(store, device.index, len(DEVICES))
    tensor = torch.full((3,), float(device.index), device=device)
    group.allreduce([tensor]).wait()
    results[device.index] = tensor.tolist()
    group.barrier().wait()
    group.shutdown()


store = dist.HashStore()
results = [None] * len(DEVICES)
threads = [threading.Thread(target=rank, args=(device, store, results)) for device in DEVICES]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
found["of threads"] = results
json.dump(found, sys.stdout)
