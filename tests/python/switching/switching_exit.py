"""Ends with live memory of both allocators. Arguments: the first object to die, and the last
allocator."""

import atexit
import sys
import threading

import torch

import ferro_alloc

order, last = sys.argv[1:]
MIB = 1 << 20


def things():
    source = torch.arange(MIB // 4, dtype=torch.int32).to("cuda")
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.MemPool()
    with torch.cuda.graph(graph):
        result = source.clone()
    graph.replay()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    shared = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    shared.record_stream(torch.cuda.Stream())
    return [graph], [source, result, inside, shared], [pool]


kinds = [[], [], []]
for switch in (lambda: None, ferro_alloc.install, ferro_alloc.uninstall):
    switch()
    for kept, made in zip(kinds, things(), strict=True):
        kept.extend(made)
graphs, tensors, pools = kinds
if last == "ferro":
    ferro_alloc.install()

if order == "graphs_first":
    graphs.clear()
elif order == "tensors_first":
    tensors.clear()
elif order == "pools_first":
    pools.clear()
    torch.cuda.empty_cache()
elif order == "at_exit":
    atexit.register(tensors.clear)
    atexit.register(torch.cuda.empty_cache)
    atexit.register(ferro_alloc.uninstall)
elif order == "thread":
    # The function dies with the interpreter, and its tensors die after it.
    def hold(*kept):
        held.set()
        threading.Event().wait()
        assert kept

    held = threading.Event()
    threading.Thread(target=hold, args=(graphs[:], tensors[:]), daemon=True).start()
    held.wait()
else:
    assert order == "nothing_dropped"
