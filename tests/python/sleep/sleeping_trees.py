"""Cudagraph trees sleep and wake: results that the program holds, and replays. Prints JSON.

After a replay the allocator's pool says that the results of a tree are free.
"""

import json

import torch

import ferro_alloc
from ferro_alloc import _C, sim

MIB = 1 << 20
ferro_alloc.install()
seen = {}


def filled(mib, value):
    return torch.full((mib * MIB // 4,), value, dtype=torch.int32, device="cuda")


def holds(tensor, value):
    return bool((tensor == value).all())


def captures():
    return sum(c.calls for name, c in sim.counters().items() if "BeginCapture" in name)


# The graphs copy, because the simulated GPU computes nothing in graphs.
@torch.compile(backend="cudagraphs")
def step(a, b):
    scratch = a.clone()
    return scratch.clone(), b.clone()


def turn():
    """Two graphs of a tree, the second of which reads what the first one wrote."""
    torch.compiler.cudagraph_mark_step_begin()
    first = step(*inputs)
    return [*first, *step(*first)]


inputs = [filled(6, 1), filled(8, 2)]
with torch.no_grad():
    for _ in range(5):
        results = turn()
    recorded = captures()
    for tags in (None, "tree"):
        inputs[0].fill_(7)
        results = turn()
        torch.cuda.synchronize()
        ferro_alloc.sleep(tags)
        if tags is None:
            seen["on the device"] = ferro_alloc.asleep().device_bytes >= 30 * MIB
            try:
                turn()
            except ferro_alloc.FerroError as error:
                seen["refused"] = "asleep" in str(error)
        other = filled(300, 9)
        del other
        torch.cuda.empty_cache()
        ferro_alloc.wake()
        seen[f"results {tags}"] = [holds(r, v) for r, v in zip(results, (7, 2) * 2, strict=True)]
    del results
    ferro_alloc.sleep(keep="nothing")
    ferro_alloc.wake()
    inputs[0].fill_(3)
    inputs[1].fill_(4)
    results = turn()
    seen["replayed"] = [holds(r, v) for r, v in zip(results, (3, 4) * 2, strict=True)]
seen["captures"] = captures() - recorded
_C.check_invariants(0)
print(json.dumps(seen))
