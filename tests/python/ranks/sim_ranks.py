"""Ranks of one host, each a process with a simulated card. Prints what each rank found as JSON.

Arguments: the number of ranks, what they do, and arguments for that. The first rank is this
process, which forks the others before it uses CUDA.
"""

import json
import os
import shutil
import sys
import tempfile

ranks, task, *words = int(sys.argv[1]), *sys.argv[2:]
folder = tempfile.mkdtemp()
place = f"{folder}/store"
rank, others = 0, []
for other in range(1, ranks):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.dup2(writing, 1)
        rank, others = other, []
        break
    os.close(writing)
    others.append(reading)

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ferro_alloc
from ferro_alloc import sim


def begin():
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{place}",
        rank=rank,
        world_size=ranks,
        device_id=torch.device("cuda", rank),
    )


def mine(*numbers, dtype=torch.float32):
    """Numbers that differ from rank to rank."""
    return torch.tensor(numbers, dtype=dtype, device="cuda") + rank


def collectives():
    begin()
    found = {}
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64):
        tensor = mine(1, 2, 3, dtype=dtype)
        dist.all_reduce(tensor)
        found[f"sum of {dtype}"] = tensor.tolist()
    for name in ("MAX", "MIN", "PRODUCT", "AVG"):
        tensor = mine(1, 2)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
        found[name] = tensor.tolist()
    tensor = mine(1, 2)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    found["half of each"] = tensor.tolist()

    last = ranks - 1
    tensor = mine(10)
    dist.broadcast(tensor, src=last)
    found["broadcast"] = tensor.tolist()
    tensor = mine(10)
    dist.reduce(tensor, dst=last)
    found["reduced"] = tensor.tolist() if rank == last else None
    gathered = [torch.empty(2, device="cuda") for _ in range(ranks)]
    dist.all_gather(gathered, mine(0, 10))
    found["gathered"] = torch.stack(gathered).tolist()
    gathered = torch.empty(ranks, device="cuda")
    dist.all_gather_into_tensor(gathered, mine(0))
    found["gathered into one"] = gathered.tolist()
    part = torch.empty(1, device="cuda")
    dist.reduce_scatter_tensor(part, mine(*range(ranks)))
    found["reduced and scattered"] = part.tolist()
    received = torch.empty(ranks, device="cuda")
    dist.all_to_all_single(received, mine(*range(0, 100 * ranks, 100)))
    found["all to all"] = received.tolist()
    # Each rank receives from each other rank as many numbers as its own rank.
    received = torch.empty(ranks * rank, device="cuda")
    dist.all_to_all_single(
        received, mine(*[0] * sum(range(ranks))), [rank] * ranks, list(range(ranks))
    )
    found["of different sizes"] = received.tolist()
    scattered = torch.empty(1, device="cuda")
    parts = [mine(10 * to) for to in range(ranks)] if rank == last else None
    dist.scatter(scattered, parts, src=last)
    found["scattered"] = scattered.tolist()

    # Each rank sends to the next in a ring, at once and one after the other.
    arrived = torch.empty(1, device="cuda")
    messages = [
        dist.P2POp(dist.isend, mine(0), (rank + 1) % ranks),
        dist.P2POp(dist.irecv, arrived, (rank - 1) % ranks),
    ]
    for message in dist.batch_isend_irecv(messages):
        message.wait()
    found["ring"] = arrived.tolist()
    dist.send(mine(50), (rank + 1) % ranks)
    dist.recv(arrived, (rank - 1) % ranks)
    found["one after the other"] = arrived.tolist()

    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    found["objects"] = [thing["rank"] for thing in objects]
    group = dist.new_group([0, last])
    if rank in (0, last):
        tensor = mine(0)
        dist.all_reduce(tensor, group=group)
        found["of two"] = tensor.tolist()

    # Tensors of this size are not moved: results in place do not change, other results are zeros,
    # and both are unknown.
    large = torch.ones(10 << 20).cuda()
    dist.all_reduce(large)
    found["large"] = [large[0].item(), len(sim.uncomputed_reads())]
    # Sums of drawn choices are as sure as the choices, whose logits are unknown here.
    for name, tensor in (
        ("drawn", large.view(-1, 8).argmax(1).eq(rank % 2).sum()),
        ("drawn and unknown", large.gt(0).sum() if rank else large.view(-1, 8).argmax(1).sum()),
    ):
        dist.all_reduce(tensor)
        tensor.item()
        found[name] = max(sim.uncomputed_reads(), key=lambda read: read.last).learned
    captured = mine(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(captured)
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
    found["twice by a graph"] = captured.tolist()
    dist.barrier()
    return found


def order():
    """Collectives are queued with other work of the same stream, and with two groups at once."""
    begin()
    groups = [dist.group.WORLD, dist.new_group(list(range(ranks)))]
    streams = [torch.cuda.Stream() for _ in groups]
    host = torch.arange(8, dtype=torch.float32).pin_memory() + rank
    wrong = 0
    for step in range(20):
        sums = []
        # The ranks come to the groups in different orders.
        for i in (0, 1) if (rank + step) % 2 else (1, 0):
            with torch.cuda.stream(streams[i]):
                tensor = host.to("cuda", non_blocking=True)
                dist.all_reduce(tensor, group=groups[i])
                back = torch.empty(8).pin_memory()
                sums.append(back.copy_(tensor, non_blocking=True))
        torch.cuda.synchronize()
        expected = ranks * torch.arange(8.0) + sum(range(ranks))
        wrong += sum(not torch.equal(each, expected) for each in sums)
    return {"wrong": wrong}


def model():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(4)]
    return nn.Sequential(*layers, nn.Linear(32, 1))


def batch(step, of):
    generator = torch.Generator().manual_seed(100 * step + of)
    return torch.randn(4, 32, generator=generator)


def training():
    """Losses of one process with the batches of all ranks, and of both ways to share the work."""
    if words[0] == "ferro_alloc":
        ferro_alloc.install()
    begin()

    def train(trained, batches):
        optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2)
        losses = []
        for step in range(4):
            optimizer.zero_grad()
            loss = trained(batches(step)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    def shared(trained):
        losses = train(trained, lambda step: batch(step, rank).cuda())
        dist.all_reduce(losses, dist.ReduceOp.AVG)
        return losses.tolist()

    def sharded(whole):
        for layer in whole:
            fully_shard(layer)
        return fully_shard(whole)

    alone = train(model(), lambda step: torch.cat([batch(step, of) for of in range(ranks)]))
    found = {"alone": alone.tolist()}
    found["data parallel"] = shared(DistributedDataParallel(model().cuda()))
    found["sharded"] = shared(sharded(model().cuda()))
    # At these sizes only memory counts; nothing is computed or moved.
    large = nn.Sequential(*[nn.Linear(2048, 2048, device="cuda") for _ in range(8)])
    train(sharded(large), lambda _: torch.empty(8192, 2048, device="cuda"))
    found["reserved"] = torch.cuda.max_memory_reserved()
    found["unknown"] = [read.place for read in sim.uncomputed_reads()]
    found["not simulated"] = sim.not_simulated()
    return found


def routing():
    """Parts of a layer's numbers on each rank, and a router of their sum on all of them."""
    from torch.utils.checkpoint import checkpoint

    begin()
    part = (torch.ones(2048, 2048, device="cuda") * (1 + rank)).requires_grad_()
    if rank == 0:
        (part @ part).argmax(1)  # which rank 0 alone logs
    found = []

    def route(part):
        logits = part @ part
        dist.all_reduce(logits)
        chosen = logits[:, :8].topk(2).indices
        found.append(torch.bincount(chosen.flatten(), minlength=8).tolist())
        rows = [part[torch.where(chosen == expert)[0]] for expert in range(8)]
        return sum((1 + i) * expert.sum() for i, expert in enumerate(rows))

    for _ in range(2):
        checkpoint(route, part, use_reentrant=False).backward()
    gathered = [torch.empty(2048, 2048, device="cuda") for _ in range(ranks)]
    dist.all_gather(gathered, part.detach() @ part.detach())
    return {"rows": found, "gathered": [each.argmax(1)[:9].tolist() for each in gathered]}


def error_of(act):
    try:
        act()
    except dist.DistBackendError as error:
        return str(error).strip().splitlines()[-1]
    return None


def failures():
    # PyTorch would end the process a minute after the first one.
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    begin()
    groups = [dist.new_group(list(range(ranks))) for _ in range(3)]
    for group in groups:
        dist.all_reduce(mine(0), group=group)
    found = {}

    def different():
        dist.all_reduce(torch.zeros(1 + rank, device="cuda"), group=groups[0])

    found["different"] = error_of(different)

    def without_the_last():
        if rank != ranks - 1:
            dist.all_reduce(mine(0), group=groups[1])

    os.environ["FERRO_SIM_NCCL_TIMEOUT"] = "1"
    found["absent"] = error_of(without_the_last)
    os.environ["FERRO_SIM_NCCL_TIMEOUT"] = "60"
    dist.barrier()
    if rank == ranks - 1:
        os._exit(0)
    found["ended"] = error_of(lambda: dist.all_reduce(mine(0), group=groups[2]))
    return found


found = [globals()[task]()]
if task != "failures":
    dist.destroy_process_group()
for reading in others:
    with os.fdopen(reading) as output:
        lines = output.read().splitlines()
    found.append(json.loads(lines[-1]) if lines else None)
print(json.dumps(found if rank == 0 else found[0]), flush=True)
if rank == 0:
    shutil.rmtree(folder)
if task == "failures":
    # The groups are not destroyed, because that needs all of their ranks.
    os._exit(0)
