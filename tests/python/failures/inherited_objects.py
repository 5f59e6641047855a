"""Children that drop one kind of inherited object each.

The argument is the allocator. Prints the exit status of each child as JSON.
"""

import gc
import json
import os

from tests.python.feature_checks import MIB, take

import torch

import ferro_alloc
from ferro_alloc import graphs

side = torch.cuda.Stream()


def mem_pool(size=0, keeps=True):
    pool = torch.cuda.MemPool()
    if size:
        with torch.cuda.use_mem_pool(pool):
            block = take(size)
        if keeps:
            return pool, block
    return pool


def captured_into_mem_pool():
    pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        result = take(MIB).zero_()
    return pool, result, graph


def plain_graph():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        take(MIB).zero_()
    return graph


def captured_graph():
    pool = graphs.CapturePool()
    with graphs.CaptureGuard(pool) as guard:
        take(MIB).zero_()
    return guard.graph, pool


def used_elsewhere():
    block = take(MIB)
    block.record_stream(side)
    return block


kinds = {
    "tensor": lambda: take(MIB),
    "tensor of another stream": used_elsewhere,
    "MemPool without memory": mem_pool,
    "MemPool in use": lambda: mem_pool(5 * MIB),
    "MemPool with a cache": lambda: mem_pool(5 * MIB, keeps=False),
    "MemPool of a graph": captured_into_mem_pool,
    "CUDAGraph": plain_graph,
    "CapturedGraph": captured_graph,
    "CapturePool": graphs.CapturePool,
    "DeviceScalar": lambda: graphs.DeviceScalar(1, torch.int64),
    "pin": lambda: ferro_alloc.pin(take(MIB)),
}
found = {}
for name, make in kinds.items():
    kept = [make()]
    torch.cuda.set_stream(torch.cuda.default_stream())
    child = os.fork()
    if child == 0:
        while kept:
            item = kept.pop(0)
            if isinstance(item, tuple):
                kept += item
            del item
            gc.collect()
        os._exit(0)
    found[name] = os.waitpid(child, 0)[1]
print(json.dumps(found))
