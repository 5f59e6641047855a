"""Ends with live tensors, graphs and pools. Argument 2 is the order of destruction.

Argument 1 is the allocator, or an additional state: "observed" by a history, an observer and a
reader of it, "own_pool" with a pool that has its own allocator, installed "late", or "uninstalled"
again.
"""

import atexit
import ctypes
import gc
import os
import sys
import threading

from tests.python.feature_checks import ALLOCATOR, MIB, error_of, filled, take

import torch

import ferro_alloc
from ferro_alloc import graphs

state, order = sys.argv[1:]
if state in ("observed", "own_pool", "uninstalled"):
    ferro_alloc.install()
if state in ("late", "uninstalled"):
    # Objects from before the switch stay alive too.
    early = [filled(MIB, 2), torch.cuda.CUDAGraph()]
    with torch.cuda.graph(early[1]):
        early.append(early[0].clone())
if state == "late":
    ferro_alloc.install()
elif state == "uninstalled":
    ferro_alloc.uninstall()
elif state == "observed":
    torch.cuda.memory._record_memory_history("all")
    reported = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *facts: reported.append(facts))
    assert error_of(lambda: take(1 << 40))[0] == "OutOfMemoryError"
    assert len(reported) == 1
elif state == "own_pool":
    # Page-aligned host memory; nothing reads or writes it.
    libc = ctypes.CDLL(None)
    functions = [ctypes.cast(f, ctypes.c_void_p).value for f in (libc.valloc, libc.free)]
    own_pool = torch.cuda.MemPool(torch._C._cuda_customAllocator(*functions))
    with torch.cuda.use_mem_pool(own_pool):
        in_own_pool = take(3 * MIB)
    # The tensor outlives its pool.
    other_pool = torch.cuda.MemPool(torch._C._cuda_customAllocator(*functions))
    with torch.cuda.use_mem_pool(other_pool):
        orphan = take(3 * MIB)
    del other_pool
else:
    assert state == ALLOCATOR
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


def pool_with_memory():
    """A graph pool with free memory and a buffer, and its graph."""
    pool = graphs.CapturePool()
    with graphs.CaptureGuard(pool) as guard:
        source.clone()
    pool.record_buffer(take(MIB))
    return [guard.graph, pool]


capture_pool = pool_with_memory()

if order == "graph_first":
    del graph, pool
elif order == "tensors_first":
    del source, result, inside, shared, capture_pool
elif order == "pool_first":
    del pool
    torch.cuda.empty_cache()
elif order == "at_exit":
    kept = [take(MIB) for _ in range(10)]
    kept += pool_with_memory()
    atexit.register(kept.clear)
    atexit.register(torch.cuda.empty_cache)
elif order == "cycle":
    # Only the garbage collector finds the cycle, when the interpreter ends.
    gc.disable()
    ring = [take(MIB), *pool_with_memory()]
    ring.append(ring)
    del ring
elif order == "thread":
    # The thread ends with the interpreter, and its tensors after it.
    def hold():
        keep = take(MIB), pool_with_memory()
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
    del capture_pool
elif order == "exception":
    sys.exit(0)
elif order == "fork":
    del capture_pool[0]  # PyTorch warns where a child drops a graph
    child = os.fork()
    if child == 0:
        # Tensors of the parent are destroyed here without a CUDA call.
        del source, result, inside, capture_pool
        os._exit(0 if torch.zeros(3).sum() == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert source.cpu()[1] == 2
else:
    assert order == "nothing_dropped"
