"""Two GPUs in one process: copies between them, kernels that read the other's memory, streams."""

import sys

from tests.python.feature_checks import MIB, check, finish

import torch
from torch import nn

assert torch.cuda.device_count() >= 2


@check
def the_first_copy_after_much_memory():
    # It gives the peer access to the mappings of many handles, made one after the other.
    parts = [
        torch.full((size * MIB,), size, dtype=torch.uint8, device="cuda:1")
        for size in (192, 6, 90, 3)
    ]
    return [int(part.to("cuda:0").sum(dtype=torch.int64)) for part in parts]


@check
def copies_both_ways():
    found = []
    for size in (1, 1000, 5 * MIB, 80 * MIB):
        there = torch.arange(size, device="cuda:1", dtype=torch.float32)
        here = there.to("cuda:0")
        back = (here + 1).to("cuda:1")
        found.append([here.sum().item(), (back - there).sum().item()])
    return found


@check
def memory_made_before_and_after_the_first_copy():
    # The first copy enables peers: earlier and later memory must be accessible.
    before = torch.full((20 * MIB,), 3, dtype=torch.uint8, device="cuda:1")
    first = before.to("cuda:0")
    after = torch.full((60 * MIB,), 5, dtype=torch.uint8, device="cuda:1")
    second = after.to("cuda:0")
    return int(first.min()), int(first.max()), int(second.min()), int(second.max())


@check
def a_model_over_two_devices():
    torch.manual_seed(0)
    first, second = nn.Linear(512, 512).to("cuda:0"), nn.Linear(512, 512).to("cuda:1")
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    losses = []
    for step in range(8):
        optimizer.zero_grad()
        x = torch.randn(64, 512, generator=torch.Generator().manual_seed(step)).to("cuda:0")
        loss = second(first(x).relu().to("cuda:1")).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses


@check
def memory_of_one_device_freed_while_the_other_is_current():
    base = [torch.cuda.memory_allocated(d) for d in (0, 1)]
    kept = [torch.empty(30 * MIB, dtype=torch.uint8, device=f"cuda:{d}") for d in (0, 1)]
    torch.cuda.set_device(1)
    kept[0].record_stream(torch.cuda.Stream(0))
    del kept
    torch.cuda.set_device(0)
    torch.cuda.synchronize(0)
    torch.cuda.empty_cache()
    return [torch.cuda.memory_allocated(d) - base[d] for d in (0, 1)]


@check
def data_parallel_replicas():
    torch.manual_seed(1)
    model = nn.DataParallel(nn.Linear(256, 256).cuda(), device_ids=[0, 1])
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(2)).cuda()
    return model(x).sum().item().hex()


if __name__ == "__main__":
    finish()
    sys.exit(0)
