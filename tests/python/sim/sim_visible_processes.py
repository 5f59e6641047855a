"""A program sees the cards 2 and 1, and its child the cards 1 and 0. Prints what each sees of the
memory and of the other's tensors, as JSON."""

import ctypes
import json
import os
import subprocess
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = "2,1"

import sim_nvml
import torch

MIB = 1 << 20
CHILD = """\
import json, sys
from ferro_alloc.sim import _activate
_activate.inherit()
import torch
before = [torch.cuda.mem_get_info(device)[0] for device in range(torch.cuda.device_count())]
kept = torch.empty(300 << 20, dtype=torch.uint8, device="cuda:0")
handle = bytes.fromhex(sys.stdin.readline())
import ctypes
driver, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]
taken = Handle()
ctypes.memmove(ctypes.byref(taken), handle, 64)
torch.ones(1, device="cuda:0")
opened = driver.cuIpcOpenMemHandle_v2(ctypes.byref(address), taken, 1)
device = ctypes.c_int(-1)
driver.cuPointerGetAttribute(ctypes.byref(device), 9, address)  # its ordinal
print(json.dumps({"free": before, "opened": opened, "device": device.value}), flush=True)
sys.stdin.read()
"""


def free():
    return [torch.cuda.mem_get_info(device)[0] // MIB for device in range(2)]


def holders_of(card):
    """The MiB of each process; empty if no process holds memory."""
    nvml, count = sim_nvml.load(), ctypes.c_uint(0)
    handle = sim_nvml.device(nvml, "Index_v2", card)
    if nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), None) == 0:
        return []
    return sorted(size // MIB for size in sim_nvml.holders(card).values())


def handle_of(device):
    """The handle of memory from cudaMalloc, in hexadecimal digits."""
    driver, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
    handle = (ctypes.c_char * 64)()
    with torch.cuda.device(device):
        torch.ones(1, device="cuda")
        assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(2 * MIB)) == 0
        assert driver.cuIpcGetMemHandle(handle, address) == 0
    return bytes(handle).hex()


kept = [
    torch.empty(size * MIB, dtype=torch.uint8, device=f"cuda:{i}")
    for i, size in ((0, 100), (1, 200))
]
exported = handle_of(1)
before = free()
found = []
for visible in ("1,0", "0"):
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": visible},
    )
    child.stdin.write(exported + "\n")
    child.stdin.flush()
    seen = json.loads(child.stdout.readline())
    seen["free"] = [size // MIB for size in seen["free"]]
    holders = [holders_of(card) for card in range(4)]
    found.append([seen, free(), holders])
    child.kill()
    child.wait()
json.dump({"before": before, "children": found, "after": free()}, sys.stdout)
