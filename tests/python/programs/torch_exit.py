"""Ends with live tensors, graphs and pools. Argument 2: who is dropped in which order."""

import atexit
import gc
import os
import sys
import threading

from feature_checks import MIB, filled, take

import torch

order = sys.argv[2]
source = filled(MIB, 1)
graph, pool = torch.cuda.CUDAGraph(), torch.cuda.MemPool()
side = torch.cuda.Stream()
with torch.cuda.graph(graph):
    result = source.clone()
graph.replay()
with torch.cuda.use_mem_pool(pool):
    inside = take(3 * MIB)
shared = take(5 * MIB)
shared.record_stream(side)

if order == "graph_first":
    del graph, pool
elif order == "tensors_first":
    del source, result, inside, shared
elif order == "pool_first":
    del pool
    torch.cuda.empty_cache()
elif order == "at_exit":
    kept = [take(MIB) for _ in range(10)]
    atexit.register(kept.clear)
    atexit.register(torch.cuda.empty_cache)
elif order == "cycle":
    # Found by the collector when the interpreter ends.
    gc.disable()
    ring = [take(MIB)]
    ring.append(ring)
    del ring
elif order == "thread":
    # Dies with the interpreter, and its tensors after it.
    def hold():
        keep = take(MIB)
        held.set()
        threading.Event().wait()
        del keep

    held = threading.Event()
    threading.Thread(target=hold, daemon=True).start()
    held.wait()
elif order == "exit_in_capture":
    unfinished = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        unfinished.capture_begin()
        inner = source.clone()
elif order == "exception":
    sys.exit(0)
elif order == "fork":
    child = os.fork()
    if child == 0:
        # Tensors of the parent die here without a CUDA call.
        del source, result, inside
        os._exit(0 if torch.zeros(3).sum() == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert source.cpu()[1] == 2
else:
    assert order == "nothing_dropped"
