"""One rank of two, each with a GPU of its own: collectives, data parallel and sharded training.

Arguments: the allocator, the rank, the port, and the registration of memory with NCCL: "hook"
(every segment, by a tracker of the allocator) or "pool" (the segments of one pool, by the program).
The allocator is "native", a layout, or "plain": pages, and expandable segments switched off while
the group and its buffers are made, without which PyTorch ignores the hook.
"""

import json
import os
import random
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

if allocator == "segments":
    ferro_alloc.install(ferro_alloc.Config(layout="segments"))
elif allocator != "native":
    ferro_alloc.install()

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False
torch.cuda.set_device(rank)
if allocator == "plain":
    torch.cuda.memory._set_allocator_settings("expandable_segments:False")
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

# Registered buffers: pools whose segments NCCL knows, one with many driver allocations and one with
# a single one.
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


def moves():
    """The number of pages that have moved so far."""
    if allocator == "native":
        return 0
    device = ferro_alloc.status().devices[rank]
    return device.pages_moved + device.pages_transferred


def around(own, other, with_messages):
    """The number of wrong collectives and messages while streams took memory from one another."""
    choose = random.Random(5)  # the same on both ranks
    streams = [torch.cuda.Stream() for _ in range(3)]
    kept = [[] for _ in streams]
    arrived = torch.empty_like(other)
    torch.cuda.synchronize()
    limit = torch.cuda.memory_reserved(rank) + (2560 << 20)
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.mem_get_info(rank)[1])
    wrong = torch.zeros(4, dtype=torch.int64, device="cuda")
    for step in range(100):
        turn = step // 5 % len(streams)
        live = kept[turn]
        with torch.cuda.stream(streams[turn]):
            live.append(
                torch.full(
                    (choose.randrange(1 << 18, 96 << 20),), 1, dtype=torch.uint8, device="cuda"
                )
            )
            while len(live) > 8:
                del live[choose.randrange(len(live))]
        own.fill_(rank + step)
        other.fill_(rank + 3 * step)
        dist.all_reduce(own)
        dist.all_reduce(other)
        wrong[0] += (own != 2 * step + 1).any()
        wrong[1] += (other != 6 * step + 1).any()
        if with_messages:
            other.fill_(10 * step + rank)
            messages = [
                dist.P2POp(dist.isend, other, 1 - rank),
                dist.P2POp(dist.irecv, arrived, 1 - rank),
            ]
            for message in dist.batch_isend_irecv(messages):
                message.wait()
            wrong[2] += (arrived != 10 * step + 1 - rank).any()
        if step % 25 == 24:
            torch.cuda.synchronize()
            wrong[3] += sum((tensor != 1).any() for live in kept for tensor in live)
            torch.cuda.synchronize()
            for live in kept:
                del live[::2]
            torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0)
    return wrong.tolist()


# A registered buffer and one between the blocks that come and go, while pages around both move.
own_pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(own_pool):
    own = torch.zeros(20 << 20, device="cuda")
if registered_by == "pool":
    backend.register_mem_pool(own_pool)
other = torch.zeros(20 << 20, device="cuda")
if allocator == "plain":
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
began = moves()
found["around"] = [around(own, other, with_messages) for with_messages in (False, True)]
found["moves"] = moves() - began
torch.cuda.synchronize()
if registered_by == "pool":
    backend.deregister_mem_pool(own_pool)
del own, other, own_pool

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
