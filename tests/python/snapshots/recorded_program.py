"""A seeded program that records its memory: ALLOCATOR SEED STEPS_BEFORE OUTPUT.

It uses sizes of all classes, two streams and two pools, and empties caches. Its last line has its
peaks during the recording, as JSON.
"""

import json
import random
import sys

import torch

import ferro_alloc

allocator, seed, steps_before, output = sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4]
if allocator == "ferro_alloc":
    ferro_alloc.install()

random.seed(seed)
torch.cuda.init()
side = torch.cuda.Stream()
pools = [torch.cuda.MemPool() for _ in range(2)]


def empty():
    size = int(2 ** random.uniform(9, 28))
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def take():
    kind = random.random()
    if kind < 0.15:
        with torch.cuda.stream(side):
            return empty()
    if kind < 0.2:
        with torch.cuda.use_mem_pool(random.choice(pools)):
            return empty()
    taken = empty()
    if kind < 0.3:
        taken.record_stream(side)
    return taken


live = []


def work(steps):
    for _ in range(steps):
        live.append(take())
        if len(live) > 100:
            live.pop(random.randrange(len(live)))
        if random.random() < 0.002:
            torch.cuda.empty_cache()


work(steps_before)
torch.cuda.reset_peak_memory_stats()
torch.cuda.memory._record_memory_history(stacks="python")
work(1200)
torch.cuda.memory._dump_snapshot(output)
print(
    json.dumps(
        {
            "reserved": torch.cuda.max_memory_reserved(),
            "active": torch.cuda.memory_stats()["active_bytes.all.peak"],
        }
    )
)
