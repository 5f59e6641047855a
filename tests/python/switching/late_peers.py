"""Copies between two devices, of which the first one ran under another allocator. Prints JSON.

Argument: "install" or "uninstall", which comes after the first copies.
"""

import json
import sys

import torch

import ferro_alloc

SIZE = 1 << 20
MIB = 1 << 20


def copied(source, target):
    """Whether a copy between new tensors is right."""
    values = torch.arange(SIZE, dtype=torch.int32)
    given = torch.empty(SIZE, dtype=torch.int32, device=source)
    given.copy_(values)
    taken = torch.empty(SIZE, dtype=torch.int32, device=target)
    taken.copy_(given)
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    return torch.equal(taken.cpu(), values)


first = (ferro_alloc.install, ferro_alloc.uninstall)
if sys.argv[1] == "uninstall":
    first[0]()
seen = [copied("cuda:0", "cuda:1"), copied("cuda:1", "cuda:0")]
first[sys.argv[1] == "uninstall"]()
seen += [copied("cuda:0", "cuda:1"), copied("cuda:1", "cuda:0")]
if sys.argv[1] == "install":
    ferro_alloc.uninstall()
else:
    ferro_alloc.install()
seen += [copied("cuda:0", "cuda:1"), copied("cuda:1", "cuda:0")]
print(json.dumps({"right": seen}))
