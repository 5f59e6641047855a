"""What the driver's newer minor versions have beside functions of the same name."""

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
