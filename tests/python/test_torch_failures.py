"""Failures as PyTorch shows them: what is said, and that nothing is different afterwards."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from tests.conftest import PROGRAMS, RunSimulated
from tests.python.torch_programs import Result, simulated

UNKNOWN, OUT_OF_MEMORY = "999", "2"
MACHINES: dict[str, dict[str, Any]] = {
    "features_failures.py": {"memory": "256MiB"},
    "features_devices.py": {"memory": "256MiB", "count": 2},
}
CHECKS = [
    (program, name)
    for program in MACHINES
    for name in re.findall(r"^@check\ndef (\w+)", (PROGRAMS / program).read_text(), re.MULTILINE)
]
# What torch sees of refusals; others are survived, or noticed by the next call.
SEEN = {
    "ferro": ("cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"),
    "segments": ("cuMemAlloc",),
}
NEVER_SEEN = ("cuMemFree", "cuMemRelease", "cuMemUnmap")


@cache
def outcomes(program: str, allocator: str) -> Result:
    return simulated(program, allocator, **MACHINES[program])


@pytest.mark.parametrize("allocator", ["ferro", "segments"])
@pytest.mark.parametrize(("program", "name"), CHECKS)
def test_as_native(program: str, name: str, allocator: str) -> None:
    found, native = (outcomes(program, which)[name] for which in (allocator, "native"))
    assert "error" not in found, found["error"]
    assert "error" not in native, native["error"]
    assert found["value"] == native["value"]


@pytest.mark.parametrize("allocator", ["ferro", "segments"])
@pytest.mark.parametrize("result", [UNKNOWN, OUT_OF_MEMORY])
def test_each_driver_call_refused_once(allocator: str, result: str) -> None:
    memory = "128MiB" if allocator == "ferro" else "256MiB"
    found = simulated("torch_every_fault.py", allocator, result, memory=memory)
    for function in SEEN[allocator]:
        refused, seen = found[function]
        assert refused > 0
        if result == UNKNOWN:
            assert seen > 0, function
        else:
            # A lack of memory for a moment is survived but in a capture, where segments stay.
            assert seen <= (allocator == "segments"), function
    for function in NEVER_SEEN:
        assert found[function][1] == 0, function
    assert sum(refused for refused, _ in found.values()) > 20
    if result == UNKNOWN:
        assert found["cuCtxSynchronize"][0] > 0


# Each state with the orders that touch what it adds.
EXITS = {
    "segments": ("nothing_dropped", "graph_first", "pool_first", "exit_in_capture", "fork"),
    "observed": ("nothing_dropped", "at_exit", "cycle", "thread", "fork"),
    "own_pool": ("nothing_dropped", "tensors_first", "at_exit", "thread"),
    "late": ("nothing_dropped", "graph_first", "cycle", "exit_in_capture"),
    "uninstalled": ("nothing_dropped", "pool_first", "at_exit", "exception", "fork"),
}


@pytest.mark.parametrize(
    ("state", "order"), [(state, order) for state, orders in EXITS.items() for order in orders]
)
def test_the_interpreter_ends_quietly(run_simulated: RunSimulated, state: str, order: str) -> None:
    ended = run_simulated("torch_exit.py", state, order, memory="256MiB")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize("allocator", ["ferro", "segments", "observed"])
def test_a_child_that_only_frees_ends(run_simulated: RunSimulated, allocator: str) -> None:
    ended = run_simulated("torch_fork.py", allocator, "after", memory="256MiB", timeout=60)
    assert (ended.stdout, ended.stderr) == ("", "")
