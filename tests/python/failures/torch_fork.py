"""Forks before CUDA is used, or, with the second argument "after", in the middle of it.

The parent continues to use CUDA; the child does not. Inherited objects are destroyed in the child
without a CUDA call.
"""

import gc
import os
import sys

from tests.python.feature_checks import ALLOCATOR, MIB, filled, take, words

import torch

import ferro_alloc

if ALLOCATOR == "observed":
    ferro_alloc.install()
assert torch.cuda.get_allocator_backend() == "ferro_alloc"
inherited = []
if sys.argv[2:] == ["after"]:
    if ALLOCATOR == "observed":
        torch.cuda.memory._record_memory_history("all")
    pool, graph, side = torch.cuda.MemPool(), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.use_mem_pool(pool):
        inherited += [take(3 * MIB), filled(MIB, 3)]
    with torch.cuda.graph(graph):
        inherited.append(inherited[1].clone())
    inherited.append(filled(MIB, 4))
    inherited[-1].record_stream(side)

child = os.fork()
if child == 0:
    inherited.clear()
    gc.collect()
    os._exit(0 if torch.zeros(MIB).sum() == 0 else 1)
kept = filled(MIB, 5)
assert torch.equal(kept.cpu(), words(5, MIB))
assert os.waitpid(child, 0)[1] == 0
if inherited:
    graph.replay()
    assert torch.equal(inherited[2].cpu(), words(3, MIB))
inherited.clear()
assert torch.equal(kept.cpu(), words(5, MIB))
