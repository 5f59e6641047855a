"""The simulated driver, called directly: newer versions of functions, conditional nodes."""

from __future__ import annotations

import json

import pytest

from tests.conftest import RunSimulated

pytestmark = pytest.mark.no_extension

NEWER = """\
import ctypes
import json
import torch
torch.zeros(1, device="cuda:1")
torch.zeros(1, device="cuda:0")
cuda = ctypes.CDLL("libcuda.so.1")

def find(name, version):
    function = ctypes.c_void_p()
    asked = name.encode(), ctypes.byref(function), version, ctypes.c_uint64(0), None
    assert cuda.cuGetProcAddress_v2(*asked) == 0
    return ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 2)(function.value)

context, device = ctypes.c_void_p(), ctypes.c_int(-1)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1)
place = ctypes.addressof(device)
found = []
for function, *arguments in (
    (find("cuCtxGetDevice", 2000), None),
    (find("cuCtxGetDevice", 13010), None),
    (find("cuCtxGetDevice", 13010), context),
    (find("cuCtxGetDevice", 13010), 77),
):
    found.append([function(place, *arguments), device.value])
synchronize = find("cuCtxSynchronize", 13010)
found += [synchronize(None, None), synchronize(context, None), synchronize(77, None)]
cuda.cuCtxGetDevice(ctypes.byref(device))
print(json.dumps([found, device.value]))
"""


def test_functions_of_newer_drivers_have_a_context(run_simulated: RunSimulated) -> None:
    found, current = json.loads(run_simulated(NEWER, count=2).stdout.splitlines()[-1])
    invalid_context = 201
    assert found == [[0, 0], [0, 0], [0, 1], [invalid_context, 1], 0, 0, invalid_context]
    assert current == 0


CONDITIONAL = """\
import ctypes
import json
import torch

data = torch.zeros(3, dtype=torch.uint8, device="cuda")
cuda = ctypes.CDLL("libcuda.so.1")
HANDLE = ctypes.c_void_p
RELAXED, SET, CONDITIONAL, IF = 2, 1, 13, 0


class Params(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int), ("reserved", ctypes.c_int * 3),
        ("handle", ctypes.c_uint64), ("kind", ctypes.c_int), ("bodies", ctypes.c_uint),
        ("graphs", ctypes.POINTER(HANDLE)), ("context", HANDLE),
        ("rest", ctypes.c_byte * 256),
    ]


def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, (name, result)


def fill(place, stream):
    call("cuMemsetD8Async", ctypes.c_uint64(data.data_ptr() + place), 7, ctypes.c_size_t(1), stream)


def nodes(graph):
    count = ctypes.c_size_t()
    call("cuGraphGetNodes", graph, None, ctypes.byref(count))
    return count.value


def add(graph, params, before):
    node, array = HANDLE(), (HANDLE * len(before))(*before)
    result = cuda.cuGraphAddNode_v2(
        ctypes.byref(node), graph, array, None, ctypes.c_size_t(len(before)), ctypes.byref(params)
    )
    return result, node


outer, inner, graph, body, executable = (HANDLE() for _ in range(5))
for stream in (outer, inner):
    call("cuStreamCreate", ctypes.byref(stream), 1)
call("cuStreamBeginCapture_v2", outer, RELAXED)
fill(0, outer)
status, number, count = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_size_t()
front = ctypes.POINTER(HANDLE)()
call(
    "cuStreamGetCaptureInfo_v3", outer, ctypes.byref(status), ctypes.byref(number),
    ctypes.byref(graph), ctypes.byref(front), None, ctypes.byref(count),
)
handle = ctypes.c_uint64()
call("cuGraphConditionalHandleCreate", ctypes.byref(handle), graph, None, 0, 0)
params = Params(type=CONDITIONAL, handle=handle, kind=IF, bodies=2)
refused, _ = add(graph, params, front[: count.value])
params.bodies = 1
done, node = add(graph, params, front[: count.value])
assert done == 0
inside = HANDLE(params.graphs[0])
call(
    "cuStreamUpdateCaptureDependencies_v2", outer, ctypes.byref(node), None, ctypes.c_size_t(1), SET
)
call("cuStreamBeginCaptureToGraph", inner, inside, None, None, ctypes.c_size_t(0), RELAXED)
fill(1, inner)
call("cuStreamEndCapture", inner, ctypes.byref(body))
call("cuStreamBeginCaptureToGraph", inner, inside, None, None, ctypes.c_size_t(0), RELAXED)
fill(1, inner)
call("cuStreamEndCapture", inner, None)
fill(2, outer)
nowhere = cuda.cuStreamEndCapture(outer, None)
call("cuStreamEndCapture", outer, ctypes.byref(graph))
kind = ctypes.c_int()
call("cuGraphNodeGetType", node, ctypes.byref(kind))
call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
call("cuGraphLaunch", executable, outer)
call("cuStreamSynchronize", outer)
print(json.dumps({
    "two bodies": refused,
    "captured into the body": body.value == inside.value,
    "end without a place for a new graph": nowhere,
    "nodes": [nodes(graph), nodes(body)],
    "type": kind.value,
    "written": data.tolist(),
    "destroyed": [cuda.cuGraphDestroy(body), cuda.cuGraphDestroy(graph)],
    "body of a destroyed graph": cuda.cuGraphGetNodes(body, None, ctypes.byref(count)),
}))
"""


@pytest.mark.parametrize("mode", ["eager", "adversarial"])
def test_the_body_of_a_conditional_node_is_captured(run_simulated: RunSimulated, mode: str) -> None:
    """It never runs, because a kernel sets the condition."""
    found = json.loads(run_simulated(CONDITIONAL, mode=mode).stdout.splitlines()[-1])
    not_supported, invalid_value, conditional = 801, 1, 13
    assert found == {
        "two bodies": not_supported,
        "captured into the body": True,
        "end without a place for a new graph": invalid_value,
        "nodes": [3, 2],
        "type": conditional,
        "written": [7, 0, 7],
        "destroyed": [invalid_value, 0],
        "body of a destroyed graph": invalid_value,
    }
