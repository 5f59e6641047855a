"""What lending does, once for each driver call in it, with this call refused.

The program's second argument is the CUresult. Whatever is refused: either nobody sees it, or one
error passes. Then the graphs replay with every byte right, and eager work gets their scratch again.
Prints for each function how many of its calls were refused, and how many of these were seen.
"""

import itertools
import json
import sys

from tests.python.every_fault import held, refuse_each
from tests.python.feature_checks import MIB, check_invariants, copied_through, filled, take, words

import torch

from ferro_alloc import FerroError, graphs, sim
from ferro_alloc.graphs import CaptureGuard

RESULT = int(sys.argv[2])
FUNCTIONS = (
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemGetInfo",
    "cuCtxSynchronize",
    "cuEventSynchronize",
    "cuEventRecordWithFlags",
    "cuStreamWaitEvent",
    "cuGraphLaunch",
)
SIZE = 2 * MIB
SCRATCH = (12 * MIB, 8 * MIB)
EAGER = 16 * MIB
stream = torch.cuda.Stream()
tags = itertools.count(1)


class Step:
    def __init__(self, scratch):
        self.source = filled(SIZE, 1)
        with CaptureGuard(stream=stream) as guard:
            self.result = copied_through(self.source, take(scratch).view(-1, SIZE).unbind())
        self.graph = guard.graph

    def replay(self):
        """May raise what the launch raises, and then the result is as it was or the new one."""
        tag = next(tags)
        self.source.copy_(words(tag, SIZE))
        try:
            self.graph.launch(stream)
        finally:
            torch.cuda.synchronize()
            found = self.result.view(torch.int32).cpu()
            ran = torch.equal(found, words(tag, SIZE))
            assert ran or self.tag is None or torch.equal(found, words(self.tag, SIZE))
            self.tag = tag if ran else self.tag
        assert ran

    tag = None


def eager_work():
    data = take(EAGER)
    data.view(torch.int32).copy_(words(7, EAGER))
    assert torch.equal(data.view(torch.int32).cpu(), words(7, EAGER))
    return group.sizes().lent_bytes > 0


def everything():
    lent = eager_work()
    for step in steps:
        step.replay()
    assert group.sizes().lent_bytes == 0
    return lent


def run(function="", number=0):
    """1 when it failed; asserts all that holds afterwards."""
    failed = 0
    if function:
        sim.fault(function, call=number, result=RESULT)
    try:
        everything()
    except (FerroError, RuntimeError):
        failed = 1
    sim.clear_faults()
    check_invariants()
    if failed:
        for step in steps:
            step.replay()
        assert everything(), (function, number)
    return failed


steps = [Step(scratch) for scratch in SCRATCH]
group = graphs.lend(*(step.graph for step in steps))
torch.cuda.synchronize()
torch.cuda.empty_cache()
# All that the device has but for so much that eager work needs scratch.
limit = torch.cuda.memory_reserved() + EAGER - 4 * MIB
torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.mem_get_info()[1])
run()
run()


def undisturbed():
    assert everything()


found = refuse_each(FUNCTIONS, run, undisturbed, held)
assert run() == 0
print(json.dumps(found))
