"""Kernels of numba over tensors of PyTorch, and memory of numba's own, in streams of both."""

import numba.cuda as cuda
import numpy as np
import torch

from tests.python.client_program import measure


@cuda.jit
def add_one(values):
    index = cuda.grid(1)
    if index < values.size:
        values[index] += 1


def run():
    tensor = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
    stream = torch.cuda.Stream()
    add_one[4096, 256, cuda.external_stream(stream.cuda_stream)](cuda.as_cuda_array(tensor))
    stream.synchronize()
    theirs = cuda.to_device(np.arange(1 << 18, dtype=np.float32))
    view = torch.as_tensor(theirs, device="cuda")
    copied = view.clone()
    event = cuda.event()
    event.record()
    event.synchronize()
    return {
        "shape": list(tensor.shape),
        "copied": torch.equal(copied.cpu(), torch.arange(1 << 18, dtype=torch.float32)),
        "same": view.data_ptr() == theirs.device_ctypes_pointer.value,
    }


measure(run)
