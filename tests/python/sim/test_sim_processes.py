"""Processes that a program starts share its simulated GPUs and their memory; NVML lists them."""

from __future__ import annotations

import json
import sys

import pytest

from tests import programs
from tests.conftest import RunSimulated
from tests.programs import Completed

pytestmark = pytest.mark.no_extension

MIB = 1 << 20


def test_children_share_the_memory_of_a_card(run_simulated: RunSimulated) -> None:
    done = run_simulated("sim_processes.py", memory="1GiB", count=2)
    found = json.loads(done.stdout)
    free, child = found["free"], found["child"]
    assert found["names"] == ["NVIDIA H100 80GB HBM3"] * 2
    assert child["devices"] == 2
    assert child["free before"] == free["before"] == 724 * MIB
    assert child["free after"] == 424 * MIB
    assert child["refused"]
    assert free["while it lives"] == 424 * MIB
    assert found["peak"] == 600 * MIB
    # It was killed, so it released nothing itself.
    assert free["after it ended"] == 724 * MIB
    assert found["holders"] == {"parent": 300 * MIB, "child": 300 * MIB}


def test_nvml_agrees_with_the_driver(run_simulated: RunSimulated) -> None:
    done = run_simulated("sim_nvml.py", gpu="a100", memory="1GiB", count=2)
    assert json.loads(done.stdout) == {
        "devices": 2,
        "uninitialised": 1,
        "uuids agree": [True, True],
        "by uuid": 1,
        "by pci bus": 1,
        "name": "NVIDIA A100-SXM4-80GB",
        "memory": [1024 * MIB, 960 * MIB, 64 * MIB],
        "capability": [8, 0],
        "nvlink": 0,
        "no such device": 2,
        "not simulated": 3,
    }


@pytest.mark.parametrize(
    "settings", [pytest.param("1", marks=pytest.mark.long), "gpu=h100,count=1"]
)
def test_a_variable_gives_a_simulated_gpu_to_processes(settings: str) -> None:
    text = (
        "from ferro_alloc._startup import begin\nbegin()\n"
        "import torch\nprint(torch.cuda.get_device_name())"
    )
    assert run(text, settings).stdout == "NVIDIA H100 80GB HBM3\n"


def test_an_unknown_value_of_the_variable_is_reported() -> None:
    done = run("from ferro_alloc._startup import begin\nbegin()", "gpu=h1000")
    assert done.returncode == 0
    assert "there is no card 'h1000'" in done.stderr
    done = run("from ferro_alloc._startup import begin\nbegin()", "colour=red")
    assert "FERRO_ALLOC_SIM names colour: expected gpu, count" in done.stderr


def test_the_program_itself_may_choose_another_machine() -> None:
    text = (
        "from ferro_alloc._startup import begin\nbegin()\n"
        "from ferro_alloc import sim\nsim.activate(gpu='l4')\n"
        "import torch\nprint(torch.cuda.get_device_name())"
    )
    assert run(text, "gpu=h100").stdout == "NVIDIA L4\n"


def run(text: str, settings: str) -> Completed:
    return programs.run([sys.executable, "-c", text], {"FERRO_ALLOC_SIM": settings})
