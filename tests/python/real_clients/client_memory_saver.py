"""Weights and a cache under torch_memory_saver, asleep and awake in turns beside other tensors.

Second argument: its hook mode, `torch` or `preload`.
"""

import sys

import torch
from torch_memory_saver import torch_memory_saver as saver

from tests.python.client_program import measure

MIB = 1 << 20
CYCLES = 10
saver.hook_mode = sys.argv[2]


def used():
    free, total = torch.cuda.mem_get_info()
    return total - free


def numbers(start, count=5 * MIB // 2):
    return torch.arange(start, start + count, dtype=torch.int32)


def sleep_and_wake():
    with saver.region(tag="weights", enable_cpu_backup=True):
        weights = [numbers(i).cuda() for i in range(2)]
    with saver.region(tag="cache"):
        cache = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    addresses = [tensor.data_ptr() for tensor in (*weights, cache)]
    outside = numbers(7, MIB).cuda()
    freed, back, intact = [], [], []
    for cycle in range(CYCLES):
        before = used()
        saver.pause("weights")
        asleep = used()
        saver.pause("cache")
        freed.append(((before - asleep) // MIB, (asleep - used()) // MIB))
        # The other program's turn: what sleeps makes room for it.
        other = [torch.empty((1 + cycle) * MIB, dtype=torch.uint8, device="cuda") for _ in "ab"]
        intact.append(torch.equal(outside.cpu(), numbers(7, MIB)))
        del other
        torch.cuda.empty_cache()
        saver.resume("cache")
        saver.resume("weights")
        back.append(used() - before)
        cache.fill_(cycle)
        intact += [torch.equal(w.cpu(), numbers(i)) for i, w in enumerate(weights)]
    after = [tensor.data_ptr() for tensor in (*weights, cache)]
    return {
        "freed": freed,
        "back": back,
        "intact": all(intact),
        "addresses kept": addresses == after,
    }


measure(sleep_and_wake)
