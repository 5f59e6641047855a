"""A lazy clone on a side stream whose memory came from another stream that still writes to it.

The argument names the stream that works first: the default one, which copies, or the clone's.
"""

import ctypes
import json
import sys

import torch

import ferro_alloc

MIB = 1 << 20
SIZE = 96 * MIB
memset = ctypes.CDLL("libcudart.so.13").cudaMemsetAsync
memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p)

ferro_alloc.install()
values = torch.arange(SIZE // 4, dtype=torch.int32).pin_memory()
back = torch.empty_like(values).pin_memory()
side, other = torch.cuda.Stream(), torch.cuda.Stream()
with torch.cuda.stream(side):
    source = torch.empty(SIZE // 4, dtype=torch.int32, device="cuda")
    source.copy_(values)
torch.cuda.synchronize()
with torch.cuda.stream(other):
    busy = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
    for byte in range(8):
        assert memset(busy.data_ptr(), byte, SIZE, other.cuda_stream) == 0
    del busy
with torch.cuda.stream(side):
    # The only memory for it is that to which `other` still writes.
    clone = torch._lazy_clone(source)
    assert clone.data_ptr() != source.data_ptr()
    if sys.argv[1] == "default_stream":
        torch.cuda.default_stream().synchronize()
    back.copy_(clone, non_blocking=True)
side.synchronize()
right = torch.equal(back, values)
torch.cuda.synchronize()
back.copy_(clone)
seen = {
    "transfers": ferro_alloc.status().devices[0].ladder["transfer"],
    "read by its stream": right,
    "read later": torch.equal(back, values),
}
print(json.dumps(seen))
