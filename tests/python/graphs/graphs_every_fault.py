"""Runs ferro_alloc.graphs once for each driver call in it, with this call refused.

The program's second argument is the CUresult. Each refusal is either handled, or raises one error
that leaves streams, random numbers, captures and memory as they were before. Prints for each
function how many of its calls were refused, and how many of these refusals ended in an error.
"""

import json
import sys

from tests.python.every_fault import held, refuse_each
from tests.python.feature_checks import MIB, filled, take, words

import torch

from ferro_alloc import graphs, sim
from ferro_alloc.graphs import CaptureGuard, DeviceScalar

RESULT = int(sys.argv[2])
# PyTorch 2.11 ends the process when cuStreamIsCapturing is refused in `capture_begin`, and
# cuStreamEndCapture ends a capture even when it fails.
FUNCTIONS = (
    "cuMemAlloc",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuEventRecord",
    "cuStreamBeginCapture",
    "cuStreamGetCaptureInfo",
    "cuGraphNodeGetDependencies",
    "cuGraphInstantiateWithFlags",
    "cuGraphUpload",
    "cuGraphLaunch",
    "cuMemsetD32Async",
    "cuStreamWriteValue64_v2",
)
stream, side = torch.cuda.Stream(), torch.cuda.Stream()


def everything():
    handle = graphs.graph_pool_handle("decode")
    try:
        scalar, small = DeviceScalar(torch.int64, 1), DeviceScalar(torch.float32, 1)
        with CaptureGuard(handle, stream=stream) as guard:
            between = source.clone()
            side.wait_stream(stream)
            with torch.cuda.stream(side):
                copied = between.clone()
            stream.wait_stream(side)
            between.record_stream(side)
            del between
            result = copied.clone()
            value = scalar.tensor.clone()
        guard.graph.upload()
        scalar.update(2)
        small.update(2)
        guard.graph.launch()
        graphed = graphs.make_graphed_callable(lambda x: x.clone(), (source,), pool=handle)
        again = graphed(source)
        torch.cuda.synchronize()
        assert torch.equal(result.cpu(), expected)
        assert torch.equal(again.cpu(), expected)
        assert int(value.cpu()) == 2
        assert float(small.tensor.cpu()) == 2
    finally:
        graphs.release_graph_pool_handle(handle)


def run(function="", number=0):
    """Returns 1 when the run failed; asserts what must hold afterwards."""
    failed = 0
    if function:
        sim.fault(function, call=number, result=RESULT)
    try:
        everything()
    except RuntimeError:
        failed = 1
    sim.clear_faults()
    where = (function, number)
    assert torch.cuda.current_stream() == torch.cuda.default_stream(), where
    for used in (stream, side):
        assert not graphs.is_stream_capturing(used), where
    torch.rand(4, device="cuda")
    if failed:
        everything()
    return failed


source, expected = filled(3 * MIB, 7), words(7, 3 * MIB)
# While a graph lives, the next one finds the tensors that its generator reads. PyTorch 2.11 ends
# the process when it cannot allocate them.
steady = [torch.cuda.CUDAGraph() for _ in range(2)]
for graph, used in zip(steady, (stream, torch.cuda.Stream()), strict=True):
    with torch.cuda.graph(graph, stream=used):
        take(MIB).zero_()
run()
run()


def undisturbed():
    before = held()
    assert run() == 0
    assert held() == before


found = refuse_each(FUNCTIONS, run, undisturbed, held, lambda n: n <= 12 or n % 5 == 0)
assert run() == 0
print(json.dumps(found))
