"""Runs a program with an exclusive group once for each driver call in it, with this call refused.

The program's second argument is the CUresult. The third is "of_a_tree" for a pool that is set back
to earlier states as trees of graphs do, and otherwise "of_graphs". With "few" as the fourth, about
half as many calls are refused. After a refusal the program goes on, or gets one error. Then the
members replay as before, with every byte right in any order, the group has its pages, and all other
memory is released. Prints for each function how many of its calls were refused, and how many of
these refusals ended in an error.
"""

import itertools
import json
import sys

from tests.python.every_fault import held, refuse_each
from tests.python.feature_checks import MIB, check_invariants, filled, take, words

import torch

from ferro_alloc import FerroError, graphs, sim
from ferro_alloc.graphs import CaptureGuard

RESULT = int(sys.argv[2])
OF_A_TREE = sys.argv[3] == "of_a_tree"
FEW = sys.argv[4] == "few"
FUNCTIONS = (
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuEventRecord",
    "cuEventRecordWithFlags",
    "cuStreamWaitEvent",
    "cuCtxRecordEvent",
    "cuStreamBeginCapture",
    "cuStreamGetCaptureInfo",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
)
SIZE = 2 * MIB
streams = [torch.cuda.Stream() for _ in range(2)]
capturing = torch.cuda.Stream()
tags = itertools.count(1)


class Step:
    """A graph that copies a source through scratch of so many MiB into a result."""

    def __init__(self, mib, pool):
        self.source = sources[mib]
        with CaptureGuard(pool, stream=capturing) as guard:
            scratch = [take(SIZE) for _ in range(mib * MIB // SIZE)]
            scratch[0].view(torch.int32).copy_(self.source)
            for before, after in itertools.pairwise(scratch):
                after.copy_(before)
            self.result = scratch[-1].clone()
        self.graph = guard.graph
        self.seen = None  # what the last replay wrote

    def put(self, tag):
        self.source.copy_(words(tag, SIZE))

    def holds(self, tag):
        return torch.equal(self.result.view(torch.int32).cpu(), words(tag, SIZE))


def replay(steps):
    """Replays alternately on two streams, which only the group orders. The program goes on after a
    launch that is refused, and raises the error at the end."""
    refused = {}
    for step in steps:
        step.tag = next(tags)
        step.put(step.tag)
    torch.cuda.synchronize()
    for number, step in enumerate(steps):
        try:
            step.graph.launch(streams[number % 2])
        except RuntimeError as error:
            refused[step] = error
    torch.cuda.synchronize()
    for step in steps:
        # A refused launch may still have run.
        ran = step.holds(step.tag)
        assert ran or step in refused
        assert ran or step.seen is None or step.holds(step.seen)
        step.seen = step.tag if ran else step.seen
    for error in refused.values():
        raise error


def graphs_join_and_leave(handles):
    late = Step(6, handles[0])
    group.join(late.graph)
    group.join(handles[1])
    early = Step(4, handles[1])
    group.join(early.graph)
    replay([first, late, early])
    replay([early, first, late])
    group.leave(late.graph)
    replay([late, first, early])


def a_tree_joins_and_leaves(handles):
    handle = handles[0]
    root = Step(6, handle)
    state = torch._C._cuda_getCheckpointState(0, handle)
    group.join(root.graph)
    child = Step(4, handle)
    torch._C._cuda_getCheckpointState(0, handle)
    replay([first, root, child])
    # The child's result is released, and its sibling may use the memory.
    torch._C._cuda_setCheckpointPoolState(0, state, [child.result.untyped_storage()._cdata], [])
    sibling = Step(10, handle)
    torch._C._cuda_getCheckpointState(0, handle)
    replay([root, first, sibling])
    group.leave(root.graph)
    replay([root, first, sibling])  # on one stream: the group does not order a former member


def everything():
    handles = [graphs.graph_pool_handle(name) for name in ("late", "early")]
    try:
        (a_tree_joins_and_leaves if OF_A_TREE else graphs_join_and_leave)(handles)
    finally:
        try:
            leave(handles)
        except (FerroError, RuntimeError):
            leave(handles)  # only one call is refused
            raise
        finally:
            for handle in handles:
                graphs.release_graph_pool_handle(handle)


def leave(handles):
    for pool in [pool for pool in group.pools if pool.handle in handles]:
        try:
            group.leave(pool)
        except FerroError as error:
            if "capture" not in str(error):
                raise
            # The end of a capture was refused: its live blocks get their pages in the next capture.
            with CaptureGuard(pool, stream=capturing):
                take(SIZE).zero_()
            group.leave(pool)


def held_with_members():
    return *held(), len(group.pools)


def run(function="", number=0):
    """Returns 1 when the run failed; asserts what must hold afterwards."""
    failed = 0
    if function:
        sim.fault(function, call=number, result=RESULT)
    try:
        everything()
    except (FerroError, RuntimeError):
        failed = 1
    sim.clear_faults()
    where = (function, number)
    assert torch.cuda.current_stream() == torch.cuda.default_stream(), where
    assert not graphs.is_stream_capturing(capturing), where
    check_invariants()
    if failed:
        everything()
    return failed


sources = {mib: filled(SIZE, mib) for mib in (10, 8, 6, 4)}
group = graphs.exclusive(name="steady")
first_handle = graphs.graph_pool_handle("first")
first = Step(8, first_handle)
group.join(first.graph)
# Generators find their tensors while a graph lives (graphs_every_fault.py).
steady = torch.cuda.CUDAGraph()
with torch.cuda.graph(steady, stream=capturing):
    take(MIB).zero_()
run()
run()


def undisturbed():
    before = held_with_members()
    assert run() == 0
    assert held_with_members() == before


def is_tried(number):
    if FEW:
        return number % 2 == 1 if number <= 20 else number % 14 == 0
    return number <= 20 or number % 7 == 0


found = refuse_each(FUNCTIONS, run, undisturbed, held_with_members, is_tried)
assert run() == 0
print(json.dumps(found))
