"""CUDA graphs and torch.compile on a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunProgram
from tests.python.graphs.test_graph_debug import EXPECTED
from tests.python.torch_programs import assert_as_native

pytestmark = pytest.mark.gpu


def results(run_program: RunProgram, program: str, env: dict[str, str]) -> list[dict[str, Any]]:
    """The output of the program under native, then under ferro_alloc."""
    found = []
    for allocator in ("native", "ferro_alloc"):
        done = run_program(program, allocator, env=env)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


def test_replays_equal_eager_work_and_native(run_program: RunProgram) -> None:
    native, ferro = results(run_program, "gpu_graphs.py", {})
    assert ferro["digest"] == native["digest"]
    # Seven graphs share one pool: dead memory serves the next graph.
    assert ferro["shared_pool_bytes"] <= 1.02 * native["shared_pool_bytes"]


def test_the_interface_for_graphs_with_real_kernels(run_program: RunProgram) -> None:
    native, ferro = results(run_program, "gpu_captures.py", {})
    assert ferro["digest"] == native["digest"]
    assert ferro["lost_by_failures"] == 0
    assert ferro["callables"] > 0
    # Sixteen graphs of a model of transformers in one pool, with their caches.
    assert ferro["decode_bytes"] <= native["decode_bytes"]


def test_plans_hold_with_real_kernels(run_program: RunProgram) -> None:
    done = run_program("features_plan.py", "ferro")
    found = json.loads(done.stdout.splitlines()[-1])
    sets = {name: found[name] for name in found if name.startswith(("a_set", "one_graph"))}
    assert sets == {name: {"value": [True] * 4} for name in sets}
    assert len(sets) == 6


def test_graphs_of_a_group_in_random_order_beside_eager_work(run_program: RunProgram) -> None:
    done = run_program("gpu_random_replays.py", "ferro_alloc")
    found = json.loads(done.stdout.splitlines()[-1])
    for name in ("separate", "shared"):
        assert found[name]["replays"] == 10_000
        assert (found[name]["wrong_results"], found[name]["wrong_eager"]) == (0, 0)
        assert 0 < found[name]["shared_bytes"] <= found[name]["scratch_bytes"]
    # In the group the scratch of several graphs has the same pages.
    assert found["separate"]["shared_bytes"] < found["separate"]["scratch_bytes"] / 2
    training = found["training"]
    assert (training["graphs"], training["wrong"]) == (35, 0)
    assert training["generated"] > 0
    assert training["losses"][1] < training["losses"][0]


def test_misuses_are_found_with_real_kernels(run_program: RunProgram) -> None:
    done = run_program("features_misuse.py", "ferro")
    found = json.loads(done.stdout.splitlines()[-1])
    # Whether replays that nothing orders overlap is up to the device, and whether a product works
    # in the workspace is up to cuBLAS. Where it does not, there is nothing to find.
    by_chance = {"overlapping_replays_of_a_group", "a_freed_workspace"}
    expected = {name: {"value": EXPECTED[name]} for name in set(EXPECTED) - by_chance}
    assert {name: found[name] for name in expected} == expected


def test_compiled_functions_and_their_trees_of_graphs(
    run_program: RunProgram, tmp_path: Path
) -> None:
    # The second process finds the kernels that the first compiled.
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    native, ferro = results(run_program, "gpu_compile.py", cache)
    assert ferro["digest"] == native["digest"]
    assert ferro["losses"][5] < ferro["losses"][0]
    assert ferro["worst_error"] < 0.05
    assert ferro["graph_bytes"] > 0
    done = run_program("gpu_compile.py", "ferro_alloc", "exclusive", env=cache)
    grouped = json.loads(done.stdout.splitlines()[-1])
    assert grouped["digest"] == native["digest"]
    right, shared, scratch = grouped["shared"]
    assert right
    assert shared < scratch


def test_the_documented_uses_of_graphs(run_program: RunProgram) -> None:
    """Each value is the same to the last bit."""
    env = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    found = {}
    for allocator in ("native", "ferro", "segments"):
        done = run_program("features_graph_examples.py", allocator, env=env)
        found[allocator] = json.loads(done.stdout.splitlines()[-1])
    for name, outcome in found["native"].items():
        for allocator in ("ferro", "segments"):
            assert_as_native(found[allocator][name], outcome)
