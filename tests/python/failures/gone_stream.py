"""A destroyed stream that the program created: its free memory serves other streams."""

import ctypes
import json
import sys

import torch

if sys.argv[1] == "ferro_alloc":
    import ferro_alloc

    ferro_alloc.install()

MIB = 1 << 20
TOTAL = torch.cuda.mem_get_info()[1]
torch.cuda.set_per_process_memory_fraction((512 * MIB + 0.5) / TOTAL)
runtime = torch.cuda.cudart()


def take(mib):
    return torch.ones(mib * MIB, dtype=torch.uint8, device="cuda")


def take_on_a_stream_that_goes(mib):
    handle = ctypes.c_void_p()
    torch.cuda.check_error(runtime.cudaStreamCreate(ctypes.addressof(handle)))
    stream = torch.cuda.ExternalStream(handle.value)
    with torch.cuda.stream(stream):
        taken = take(mib)
        del taken
    torch.cuda.check_error(runtime.cudaStreamDestroy(handle.value))


for _ in range(3):
    take_on_a_stream_that_goes(300)
    small = take(4)
    large = take(400)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        more = take(64)
    del large, more
    torch.cuda.synchronize()
torch.cuda.empty_cache()
print(json.dumps({"reserved": torch.cuda.memory_reserved() // MIB}))
