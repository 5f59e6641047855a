"""Many live streams and pools on all devices, with addresses left for the host.

The arguments are their numbers. A process has 128 TiB of addresses for all of them. Prints what it
found as JSON.
"""

import ctypes
import json
import mmap
import sys

import torch

import ferro_alloc

ferro_alloc.install()

DEVICES = torch.cuda.device_count()
STREAMS, POOLS = map(int, sys.argv[1:])
HOST_TIB = 16
runtime = torch.cuda.cudart()


def new_stream(device):
    handle = ctypes.c_void_p()
    torch.cuda.check_error(runtime.cudaStreamCreate(ctypes.addressof(handle)))
    return torch.cuda.ExternalStream(handle.value, device=device)


def number_on(device, value):
    return torch.full((128,), value, dtype=torch.int32).to(f"cuda:{device}")


streams, pools, numbers = [], [], []
for i in range(STREAMS):
    device = i % DEVICES
    with torch.cuda.device(device):
        streams.append(new_stream(device))
        with torch.cuda.stream(streams[-1]):
            numbers.append(number_on(device, i))
for i in range(POOLS):
    device = i % DEVICES
    with torch.cuda.device(device):
        pools.append(torch.cuda.MemPool())
        with torch.cuda.use_mem_pool(pools[-1], device):
            numbers.append(number_on(device, STREAMS + i))
for device in range(DEVICES):
    torch.cuda.synchronize(device)

# Reserves addresses, as the memory of another library would; none of it is touched.
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
size = ctypes.c_size_t(HOST_TIB << 40)
host = libc.mmap(None, size, mmap.PROT_READ, flags, -1, ctypes.c_long(0))

wrong = sum(int(number[0]) != value for value, number in enumerate(numbers))
large = torch.empty(64 << 30, dtype=torch.uint8, device="cuda:0")
print(
    json.dumps(
        {
            "devices": DEVICES,
            "host": host != ctypes.c_void_p(-1).value,
            "wrong": wrong,
            "numbers": len(numbers),
            "large": large.numel() >> 30,
        }
    )
)
