"""A program and its child on one simulated card. Prints the free memory that each sees as JSON.

The checkout is not installed, so the child requests the machine that it would inherit.
"""

import json
import os
import subprocess
import sys

import sim_nvml
import torch

from ferro_alloc import sim

MIB = 1 << 20
CHILD = """\
import json, sys
from ferro_alloc.sim import _activate
_activate.inherit()
import torch
before = torch.cuda.mem_get_info()[0]
kept = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
try:
    torch.empty(500 << 20, dtype=torch.uint8, device="cuda")
    refused = False
except torch.OutOfMemoryError:
    refused = True
print(json.dumps({
    "devices": torch.cuda.device_count(), "free before": before,
    "free after": torch.cuda.mem_get_info()[0], "refused": refused,
}), flush=True)
sys.stdin.read()
"""


def free():
    return torch.cuda.mem_get_info()[0]


kept = torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
left = {"before": free()}
child = subprocess.Popen(
    [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
seen = json.loads(child.stdout.readline())
left["while it lives"] = free()
from_nvml = sim_nvml.holders(0)
whose = {os.getpid(): "parent", child.pid: "child"}
child.kill()
child.wait()
left["after it ended"] = free()
json.dump(
    {
        "free": left,
        "child": seen,
        "peak": sim.memory()[0].peak,
        "names": [torch.cuda.get_device_name(i) for i in range(2)],
        "holders": {whose[process]: size for process, size in from_nvml.items()},
    },
    sys.stdout,
)
