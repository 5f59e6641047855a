"""Trains a little with side streams, forks and ends, also with a thread that removes old mappings.

Kernels compute nothing on the simulated GPU, so what is compared are copied bytes.
"""

import json
import os
import time

from tests.python.feature_checks import FERRO, MIB, filled, words

import torch

import ferro_alloc


def device_status():
    return ferro_alloc.status().devices[0]


def train(steps):
    """A model whose batches differ in size, so that free pages move."""
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 512)).cuda()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    side = torch.cuda.Stream()
    right = 0
    for step in range(steps):
        batch = torch.empty(256 * (1 + step * 5 % 11), 512, device="cuda")
        model(batch).sum().backward()
        optimiser.step()
        optimiser.zero_grad()
        # Copied on another stream, and freed while that may still read it.
        source = filled((2 + step * 7 % 9) * MIB, step)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            copy = source.clone()
        source.record_stream(side)
        del source, batch
        torch.cuda.current_stream().wait_stream(side)
        right += torch.equal(copy.cpu(), words(step, copy.nbytes))
        copy.record_stream(torch.cuda.current_stream())
    return right


found = {"before the fork": train(12), "children": []}
kept = filled(3 * MIB, 5)
for _ in range(3):
    # In the child nobody removes mappings, and the driver is not there.
    child = os.fork()
    if child == 0:
        del kept
        os._exit(0 if torch.zeros(MIB).sum() == 0 else 1)
    found["children"].append(os.waitpid(child, 0)[1])
found["after it"] = train(12)
found["kept"] = torch.equal(kept.cpu(), words(5, kept.nbytes))
found["allocated"] = torch.cuda.memory_allocated()
if FERRO:
    torch.cuda.synchronize()
    found["by requests"] = device_status().unmapped_by_requests
    for _ in range(200):
        if device_status().unmapped_by_thread != 0:
            break
        time.sleep(0.01)
    found["by the thread"] = device_status().unmapped_by_thread
    torch.cuda.empty_cache()
    found["reserved"] = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
print(json.dumps(found))
