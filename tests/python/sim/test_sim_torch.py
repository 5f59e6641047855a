"""Unmodified PyTorch on the simulated GPU."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.processes import SIMULATED_ALLOCATORS
from tests.conftest import RunSimulated
from tests.programs import Completed
from tests.python.torch_programs import Result, simulated

NATIVE: dict[str, str] = {}
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
LONG = pytest.mark.long
both_allocators = pytest.mark.parametrize(
    "env", [NATIVE, pytest.param(EXPANDABLE, marks=LONG)], ids=["native", "expandable"]
)


def last_line(completed: Completed) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    return result


@both_allocators
def test_the_parts_of_torch_that_programs_use(
    run_simulated: RunSimulated, env: dict[str, str]
) -> None:
    result = last_line(run_simulated("sim_features.py", env=env))
    assert len(result["done"]) == 16
    assert result["unsupported"] == []


@pytest.mark.parametrize("gpu", ["a100", "l4", "l40s", "rtx4090", "h100", "h200"])
def test_every_card_finds_code_in_torch(run_simulated: RunSimulated, gpu: str) -> None:
    outcomes = last_line(run_simulated("sim_cards.py", gpu=gpu))
    assert len(outcomes) == 7
    assert set(outcomes.values()) == {"ran"}, outcomes


@both_allocators
def test_training_is_fast_and_its_memory_plausible(
    run_simulated: RunSimulated, env: dict[str, str]
) -> None:
    result = last_line(run_simulated("sim_llama.py", env=env))
    parameters = result["parameters"]
    assert 150e6 < parameters < 250e6
    # bfloat16 weights, gradients and two moments, and activations on top.
    assert result["allocated"] > 8 * parameters
    assert result["allocated"] <= result["reserved"] < 80 << 30
    assert result["unsupported"] == []
    # 10 to 30 ms on an idle core.
    assert result["median_step_ms"] < 500


@cache
def compiled(allocator: str) -> Result:
    env = EXPANDABLE if allocator == "expandable" else NATIVE
    return simulated("sim_compile.py", allocator, env=env)


@pytest.mark.parametrize(
    "allocator",
    [
        name if name == "ferro_alloc" else pytest.param(name, marks=LONG)
        for name in SIMULATED_ALLOCATORS
    ],
)
def test_compiled_models_replay_graphs(allocator: str) -> None:
    result = compiled(allocator)
    assert result["unsupported"] == []
    # Each of two shapes is warmed up once; then graphs run forward and backward. Graphs also run
    # the forward passes without gradients, and their successors.
    assert result["graph_launches"] >= 2 * 3 * 2 + 5 + 2


@pytest.mark.parametrize("allocator", ["native", pytest.param("expandable", marks=LONG)])
def test_compiled_models_reserve_no_more_than_under(allocator: str) -> None:
    ferro, other = compiled("ferro_alloc"), compiled(allocator)
    assert ferro["graph_launches"] == other["graph_launches"]
    assert 0 < ferro["peak_reserved"] <= other["peak_reserved"]
    assert 0 < ferro["reserved"] <= other["reserved"]


def test_two_devices(run_simulated: RunSimulated) -> None:
    result = last_line(run_simulated("sim_devices.py", count=2))
    assert result["equal"]
    assert all(count > 0 for count in result["allocated"])
    assert all(used >= mine for used, mine in zip(result["used"], result["allocated"], strict=True))


@pytest.mark.parametrize("values", [False, True], ids=["memory", "values"])
@pytest.mark.parametrize("allocator", ["native", "ferro"])
def test_forked_children_that_use_a_card_get_the_errors_of_a_card(
    run_simulated: RunSimulated, allocator: str, values: bool
) -> None:
    done = run_simulated("sim_forked.py", allocator, values=values)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("parent") == [2.0 if values else 0.0] * 4
    assert {status for _, status in found.values()} == {7}
    # As an H200 says it.
    errors = {use: error for use, (error, _) in found.items()}
    assert {use for use, error in errors.items() if error is None} == {"shape", "forgotten"}
    lazy = {use for use, error in errors.items() if error == "Cannot re-initialize"}
    assert lazy == {"new", "synchronize"}
    assert set(errors.values()) == {None, "initialization error", "Cannot re-initialize"}


@both_allocators
def test_driver_failures_reach_torch_as_out_of_memory(
    run_simulated: RunSimulated, env: dict[str, str]
) -> None:
    assert last_line(run_simulated("sim_faults.py", env=env)) == {
        "fault": "OutOfMemoryError",
        "after": 64 << 20,
        "too_large": "OutOfMemoryError",
    }


def test_constants_are_real() -> None:
    assert simulated("sim_constants.py") == {
        "values": [[1] * 3, [-2] * 3, [True] * 3, [0.5] * 3, [0.25] * 3],
        "before the replay": [0] * 8,
        "after it": [5] * 8,
        "small sum": True,
        "large": True,
    }


KERNELS_AT_RUN_TIME = """\
import json, os, sys
os.environ["PYTORCH_KERNEL_CACHE_PATH"] = sys.argv[1]
import torch
from ferro_alloc import sim
torch.special.bessel_j0(torch.ones(1000, device="cuda"))
print(json.dumps({"files": len(os.listdir(sys.argv[1])), "missed": sim.not_simulated()}))
"""


def test_equal_runs_report_the_same(run_simulated: RunSimulated, tmp_path: Path) -> None:
    # NVRTC compiles a kernel in the first run, and the others find it on disk.
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    runs = [last_line(run_simulated(KERNELS_AT_RUN_TIME, str(kernels))) for _ in range(2)]
    assert runs == 2 * [{"files": 1, "missed": ["calls that are not simulated: none"]}]
