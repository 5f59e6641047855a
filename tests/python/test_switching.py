"""Switching between native and ferro_alloc in a running program, with native alone as the judge."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from tests.conftest import PROGRAMS, RunSimulated
from tests.python.torch_programs import Result, simulated

CHECKS = re.findall(
    r"^@check_switching\ndef (\w+)", (PROGRAMS / "switching.py").read_text(), re.MULTILINE
)
ORDERS = ("nothing_dropped", "graphs_first", "tensors_first", "pools_first", "at_exit", "thread")


@cache
def outcomes(allocators: str, **settings: Any) -> Result:
    """Of all checks, from one run."""
    return simulated("switching.py", allocators, memory="1GiB", **settings)


@pytest.mark.parametrize("name", CHECKS)
def test_as_without_switching(name: str) -> None:
    found, native = (outcomes(allocators)[name] for allocators in ("switch", "native"))
    assert "error" not in found, found["error"]
    assert "error" not in native, native["error"]
    assert found["value"] == native["value"]


def test_as_late_as_streams_allow() -> None:
    found = outcomes("switch", mode="adversarial", seed=3, turn="0.003")
    assert not [outcome["error"] for outcome in found.values() if "error" in outcome]
    assert all(found["streams_are_waited_for"]["value"])


@pytest.mark.parametrize("last", ["ferro", "native"])
@pytest.mark.parametrize("order", ORDERS)
def test_the_interpreter_ends_quietly(run_simulated: RunSimulated, order: str, last: str) -> None:
    ended = run_simulated("switching_exit.py", order, last, memory="1GiB")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_without_caching_from_the_environment(run_simulated: RunSimulated) -> None:
    program = (
        "import ferro_alloc, torch\n"
        "ferro_alloc.install()\n"
        "free = torch.cuda.mem_get_info()[0]\n"
        "x = torch.arange(1 << 20, device='cuda')\n"
        "print(torch.cuda.memory_allocated(), free - torch.cuda.mem_get_info()[0] >= 8 << 20)\n"
        "ferro_alloc.uninstall()\n"
        "del x\n"
        "print(free == torch.cuda.mem_get_info()[0])\n"
    )
    env = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    assert run_simulated(program, env=env).stdout == "0 True\nTrue\n"


def test_several_devices(run_simulated: RunSimulated) -> None:
    program = (
        "import ferro_alloc, torch\n"
        "old = [torch.full((1 << 18,), 7, device=f'cuda:{i}') for i in range(2)]\n"
        "ferro_alloc.install()\n"
        "new = [torch.full((1 << 18,), 8, device=f'cuda:{i}') for i in range(2)]\n"
        "held = [torch.cuda.memory_allocated(i) for i in range(2)]\n"
        "ferro_alloc.uninstall()\n"
        "assert held == [torch.cuda.memory_allocated(i) for i in range(2)] == [4 << 20] * 2, held\n"
        "del old, new\n"
        "assert [torch.cuda.memory_allocated(i) for i in range(2)] == [0, 0]\n"
    )
    run_simulated(program, count=2)


def test_an_unused_device_stays_untouched(run_simulated: RunSimulated) -> None:
    program = (
        "import ferro_alloc, torch\n"
        "x = torch.ones(8, device='cuda:0')\n"
        "ferro_alloc.install()\n"
        "ferro_alloc.uninstall()\n"
        "torch.cuda.empty_cache()\n"
        "assert torch._C._cuda_hasPrimaryContext(0)\n"
        "assert not torch._C._cuda_hasPrimaryContext(1)\n"
    )
    run_simulated(program, count=2)
