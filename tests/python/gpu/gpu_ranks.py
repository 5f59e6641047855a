"""One rank of two, each with a GPU of its own: collectives, data parallel and sharded training.

Arguments: the allocator, the rank, the port, and who registers memory with NCCL: "hook" (every
segment, by a tracker of the allocator) or "pool" (the segments of one pool, by the program).
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

allocator, rank, port, registered_by = sys.argv[1], int(sys.argv[2]), *sys.argv[3:5]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, CUBLAS_WORKSPACE_CONFIG=":4096:8")
os.environ["NCCL_NVLS_ENABLE"] = "0"
if registered_by == "hook":
    os.environ["TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"] = "1"

import torch

import ferro_alloc

if allocator != "native":
    ferro_alloc.install(ferro_alloc.Config(layout=allocator))

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False
torch.cuda.set_device(rank)
dist.init_process_group("nccl", rank=rank, world_size=2, device_id=torch.device("cuda", rank))
found = {}


def made():
    torch.manual_seed(0)
    return nn.Sequential(
        *[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(8)]
    ).cuda()


def trained(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(10):
        generator = torch.Generator().manual_seed(10 * step + rank)
        optimizer.zero_grad(set_to_none=True)
        loss = model(torch.randn(64, 1024, generator=generator).cuda()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses


found["sums"] = []
for size in (1, 1000, 3 << 20, 40 << 20):
    tensor = torch.full((size,), float(rank + 1), device="cuda")
    dist.all_reduce(tensor)
    found["sums"].append([tensor.min().item(), tensor.max().item()])
    gathered = [torch.empty_like(tensor) for _ in range(2)]
    dist.all_gather(gathered, tensor)
    found["sums"][-1].append(gathered[1].sum().item())
    del tensor, gathered

# Registered buffers: pools whose segments NCCL knows, of many allocations of the driver and of one.
backend = dist.group.WORLD._get_backend(torch.device("cuda", rank))
found["pool"] = []
for no_split in (False, True):
    pool = torch.cuda.MemPool(no_split=no_split)
    with torch.cuda.use_mem_pool(pool):
        buffer = torch.full((8 << 20,), float(rank), device="cuda")
    if registered_by == "pool":
        backend.register_mem_pool(pool)
    dist.all_reduce(buffer)
    torch.cuda.synchronize()
    found["pool"].append([buffer.min().item(), buffer.max().item()])
    if registered_by == "pool":
        backend.deregister_mem_pool(pool)
    del buffer, pool

found["data_parallel"] = trained(DistributedDataParallel(made(), device_ids=[rank]))
mesh = init_device_mesh("cuda", (2,))
model = made()
for layer in model:
    fully_shard(layer, mesh=mesh)
found["sharded"] = trained(fully_shard(model, mesh=mesh))
torch.cuda.empty_cache()
found["other_device"] = torch.cuda.memory_reserved(1 - rank)
dist.destroy_process_group()
if allocator != "native":
    from ferro_alloc import _C

    _C.check_invariants(rank)
print(json.dumps(found))
