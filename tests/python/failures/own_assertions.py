"""A call about a pool that does not exist. Prints the error as JSON."""

import json

import torch

import ferro_alloc

ferro_alloc.install()
torch.empty(1, device="cuda")
try:
    torch._C._cuda_releasePool(0, (0, 12345))
except RuntimeError as error:
    print(json.dumps({"error": str(error)}))
