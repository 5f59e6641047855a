"""PyTorch's features that use the allocator, under ferro_alloc compared with native.

Each program runs under both; the results of its checks do not depend on the allocator.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.conftest import RunSimulated
from tests.python.torch_programs import Result, assert_as_native, checks_of, simulated

MEMORY = {
    "features_memory.py": "1GiB",
    "features_expandable.py": "1GiB",
    "features_history.py": "1GiB",
    "features_pools.py": "1GiB",
    "features_graphs.py": "4GiB",
    "features_graph_examples.py": "4GiB",
    "features_training.py": "4GiB",
}
CHECKS = [(program, name) for program in MEMORY for name in checks_of(program)]
EXAMPLES = "features_graph_examples.py"
ORDERS = (
    "nothing_dropped",
    "graph_first",
    "tensors_first",
    "pool_first",
    "at_exit",
    "cycle",
    "thread",
    "exit_in_capture",
    "exception",
    "fork",
)


@cache
def outcomes(program: str, allocator: str) -> Result:
    """The outcomes of all checks of a program, from one run."""
    return simulated(program, allocator, memory=MEMORY[program])


@pytest.mark.parametrize(("program", "name"), CHECKS)
def test_as_native(program: str, name: str) -> None:
    assert_as_native(outcomes(program, "ferro")[name], outcomes(program, "native")[name])


@pytest.mark.parametrize("name", checks_of(EXAMPLES))
def test_examples_of_graphs_in_the_classic_layout(name: str) -> None:
    assert_as_native(outcomes(EXAMPLES, "segments")[name], outcomes(EXAMPLES, "native")[name])


@pytest.mark.parametrize("program", ["features_graphs.py", EXAMPLES])
def test_graphs_as_late_as_streams_allow(program: str) -> None:
    settings: dict[str, Any] = {"memory": "4GiB", "mode": "adversarial", "seed": 5, "turn": "0.003"}
    found = simulated(program, "ferro", **settings)
    assert not [outcome["error"] for outcome in found.values() if "error" in outcome]


@pytest.mark.parametrize("mode", ["eager", "adversarial"])
def test_pages_of_pools_move_until_a_capture(mode: str) -> None:
    found = simulated("features_pool_pages.py", "ferro", memory="256MiB", mode=mode, turn="0.003")
    assert not [outcome["error"] for outcome in found.values() if "error" in outcome]


@pytest.mark.parametrize("order", ORDERS)
def test_the_interpreter_ends_quietly(run_simulated: RunSimulated, order: str) -> None:
    ended = run_simulated("torch_exit.py", "ferro", order, memory="1GiB", destructors=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_fork_before_cuda_is_used(run_simulated: RunSimulated) -> None:
    ended = run_simulated("torch_fork.py", "ferro", memory="1GiB")
    assert ended.stderr == ""


@cache
def refusals() -> Result:
    return simulated("torch_faults.py", "ferro", memory="1GiB")


@pytest.mark.parametrize("function", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_a_driver_out_of_memory_is_torchs_error(function: str) -> None:
    kind, text = refusals()[f"{function} stays out of memory"]
    assert kind == "OutOfMemoryError"
    assert "CUDA out of memory. Tried to allocate 8.00 MiB" in text
    assert "verdict = DRIVER" in text


@pytest.mark.parametrize("function", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_a_driver_out_of_memory_for_a_moment_is_survived(function: str) -> None:
    # Another process or library may have freed memory in between: the last step tries again.
    assert refusals()[f"{function} out of memory"] == ["", ""]


@pytest.mark.parametrize(
    "function",
    [
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemAddressReserve",
        "cuEventSynchronize",
        "cuEventQuery",
    ],
)
def test_a_refusal_names_the_driver_call(function: str) -> None:
    kind, text = refusals()[f"{function} unknown"]
    assert kind == "AcceleratorError"
    assert text.startswith("CUDA error: ")
    assert f"ferro_alloc: {function} failed with CUDA_ERROR_UNKNOWN" in text.splitlines()[-1]


@pytest.mark.parametrize(
    "function", ["cuMemUnmap", "cuMemRelease", "cuEventRecord", "cuEventCreate"]
)
def test_a_refusal_while_giving_back_is_survived(function: str) -> None:
    # Frees never raise; the memory stays and is released the next time.
    assert refusals()[f"{function} unknown"] == ["", ""]


def test_nothing_is_lost_by_refusals() -> None:
    assert refusals()["held at the end"] == [0, 0]
