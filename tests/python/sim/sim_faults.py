"""Failures of the driver as torch shows them."""

import json
import os

import torch

from ferro_alloc import sim

expandable = "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
call = "cuMemCreate" if expandable else "cuMemAlloc"
keep = torch.empty(1, device="cuda")

sim.fault(call, after=0)
try:
    torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    outcome = "allocated"
except torch.OutOfMemoryError:
    outcome = "OutOfMemoryError"
sim.clear_faults()
again = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")

try:
    torch.empty(2 * torch.cuda.mem_get_info()[1], dtype=torch.uint8, device="cuda")
    too_large = "allocated"
except torch.OutOfMemoryError:
    too_large = "OutOfMemoryError"
print(json.dumps({"fault": outcome, "after": again.numel(), "too_large": too_large}))
