"""rmm and cupy beside PyTorch on a GPU, and their errors on the simulated one."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.conftest import RunProgram, RunSimulated

pytest.importorskip("rmm", reason="rmm is not installed: make test-clients")
pytest.importorskip("cupy", reason="cupy is not installed: make test-clients")

ASKED = """\
import json, sys
import torch
import ferro_alloc
from ferro_alloc import sim
ferro_alloc.install()
x = torch.arange(1000).cuda()
try:
    if sys.argv[1] == "cupy":
        import cupy
        cupy.cuda.runtime.getDeviceCount()
    else:
        import rmm
        rmm.DeviceBuffer(size=1 << 20)
except RuntimeError as error:
    said = str(error)
print(json.dumps([said, sim.unsupported(), torch.equal(x.cpu(), torch.arange(1000))]))
"""


@pytest.mark.parametrize("client", ["cupy", "rmm"])
def test_on_the_simulated_gpu_the_reason_is_reported(
    client: str, run_simulated: RunSimulated
) -> None:
    """Both have NVIDIA's libcudart linked into them."""
    done = run_simulated(ASKED, client)
    said, unsupported, intact = json.loads(done.stdout.splitlines()[-1])
    assert said == "cudaErrorNotSupported: operation not supported"
    (name,) = unsupported
    assert name.startswith("cuGetExportTable, without which NVIDIA's libcudart in ")
    assert name in done.stderr
    assert intact


@pytest.mark.gpu
def test_they_share_a_device(run_program: RunProgram) -> None:
    def run(allocator: str) -> dict[str, Any]:
        done = run_program("client_rmm.py", allocator)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        print(allocator, found, file=sys.stderr)
        return found

    native, pages = run("native"), run("pages")
    assert native["value"] == {"rounds": 20, "right": True}
    assert pages["value"] == native["value"]
    assert pages["peak_reserved"] <= native["peak_reserved"]
