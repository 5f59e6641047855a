"""Each driver call of the allocator is refused: the error in torch, and the success of the next
call.

A call is refused once, or, for a driver that stays out of memory, until the faults are cleared.

Prints for each function the type and text of the error, or what the call returned.
"""

import json

from tests.python.feature_checks import MIB, check_invariants, error_of, filled, take, words

import torch

from ferro_alloc import sim

UNKNOWN = 999
OUT_OF_MEMORY = 2


def refused(function, result, call, lasting=False):
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    if lasting:
        sim.fault(function, after=0, result=result)
    else:
        sim.fault(function, call=1, result=result)
    kind, text = error_of(call)
    sim.clear_faults()
    after = filled(4 * MIB, 7)
    assert torch.equal(after.cpu(), words(7, 4 * MIB)), function
    check_invariants()
    return [kind, text]


def take_pages():
    return take(8 * MIB)


def take_on_a_new_stream():
    # The heap of the stream has no addresses yet.
    with torch.cuda.stream(torch.cuda.Stream()):
        return take(8 * MIB)


def free_pages():
    kept = take(8 * MIB)
    del kept
    torch.cuda.empty_cache()


def use_two_streams():
    kept, side = take(8 * MIB), torch.cuda.Stream()
    kept.record_stream(side)
    del kept
    torch.cuda.memory_stats()


take(1)
found = {}
for function in ("cuMemCreate", "cuMemMap", "cuMemSetAccess"):
    for name, result in (("out of memory", OUT_OF_MEMORY), ("unknown", UNKNOWN)):
        found[f"{function} {name}"] = refused(function, result, take_pages)
    found[f"{function} stays out of memory"] = refused(
        function, OUT_OF_MEMORY, take_pages, lasting=True
    )
found["cuMemAddressReserve unknown"] = refused("cuMemAddressReserve", UNKNOWN, take_on_a_new_stream)
for function in ("cuMemUnmap", "cuMemRelease", "cuEventSynchronize"):
    found[f"{function} unknown"] = refused(function, UNKNOWN, free_pages)
for function in ("cuEventRecord", "cuEventQuery", "cuEventCreate"):
    found[f"{function} unknown"] = refused(function, UNKNOWN, use_two_streams)

torch.cuda.synchronize()
torch.cuda.empty_cache()
found["held at the end"] = [torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]
print(json.dumps(found))
