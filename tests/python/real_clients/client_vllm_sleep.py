"""vLLM's CuMemAllocator: sleep of both levels, tags, graphs, many times over.

The program has a pool of weights, a pool of a cache, and a graph that reads both. The result is
what a sleep frees and what memory contains afterwards; neither depends on the allocator.
"""

import gc

import torch
from vllm.device_allocator.cumem import CuMemAllocator

from tests.python.client_program import measure

CYCLES = 50
WEIGHTS = (1 << 18, 3 << 18, (5 << 18) + 512)  # floats
CACHE = 24 << 20  # bytes
READ = 1 << 16  # bytes of the cache that the graph reads


def free():
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def numbers(size, cycle):
    return torch.arange(size, dtype=torch.float32) + cycle


def sleep(allocator, offloaded):
    before = free()
    allocator.sleep(offloaded)
    return free() - before


def program():
    allocator = CuMemAllocator.get_instance()
    with allocator.use_memory_pool("weights"):
        weights = [numbers(size, 0).cuda() for size in WEIGHTS]
    with allocator.use_memory_pool("kv_cache"):
        cache = torch.empty(CACHE, dtype=torch.uint8, device="cuda")
    usage = [allocator.get_current_usage()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        read = [weight.clone() for weight in weights]
        read_cache = cache[:READ].clone()
    freed, held = set(), set()
    for cycle in range(CYCLES):
        # Level 1: weights are kept on the host, the cache is not.
        freed.add(("level 1", sleep(allocator, ("weights",))))
        allocator.wake_up(["weights"])
        held.add(all(torch.equal(w.cpu(), numbers(w.numel(), cycle)) for w in weights))
        allocator.wake_up(["kv_cache"])
        cache[:READ].copy_(torch.full((READ,), cycle, dtype=torch.uint8))
        # Other work takes and returns memory outside the pools.
        torch.empty((cycle % 7 + 1) << 22, device="cuda")
        graph.replay()
        held.add(all(torch.equal(r.cpu(), numbers(r.numel(), cycle)) for r in read))
        held.add(bool((read_cache.cpu() == cycle).all()))
        # Level 2: nothing is kept, and the program loads weights again.
        freed.add(("level 2", sleep(allocator, ())))
        allocator.wake_up()
        for weight in weights:
            weight.copy_(numbers(weight.numel(), cycle + 1))
    usage.append(allocator.get_current_usage())
    del weights, cache, read, read_cache, graph
    return {"usage": usage, "freed": sorted(freed), "held": sorted(held)}


# Each sleep and each wake-up collects garbage; scanning the objects of the imports takes 0.3 s.
gc.freeze()
measure(program)
