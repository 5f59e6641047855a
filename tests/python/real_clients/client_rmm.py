"""PyTorch, cupy and rmm take memory of one device in turns, and read each other's. On a GPU."""

import cupy
import rmm
import torch
from rmm.pylibrmm.stream import DEFAULT_STREAM

from tests.python.client_program import measure

MIB = 1 << 20
ROUNDS = 20


def share():
    pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=64 * MIB)
    rmm.mr.set_current_device_resource(pool)
    right = []
    for step in range(ROUNDS):
        tensor = torch.arange((1 + step % 7) * MIB, dtype=torch.int32, device="cuda") + step
        array = cupy.from_dlpack(tensor) * 2
        back = torch.from_dlpack(array)
        torch.cuda.synchronize()
        buffer = rmm.DeviceBuffer(size=back.nbytes)
        view = torch.as_tensor(buffer, device="cuda").view(torch.int32)
        view.copy_(back)
        torch.cuda.synchronize()
        right.append(torch.equal(view, 2 * tensor))
        DEFAULT_STREAM.synchronize()
        del array, back, view, buffer
        cupy.get_default_memory_pool().free_all_blocks()
    return {"rounds": len(right), "right": all(right)}


measure(share)
