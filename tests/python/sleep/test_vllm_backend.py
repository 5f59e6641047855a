"""ferro_alloc as a sleep-mode backend of vLLM, with a stand-in for vLLM's worker.

`tests/python/real_clients/test_vllm.py` runs the same program with vLLM.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import setup as ferro_setup
from tests.conftest import RunProgram, RunSimulated
from tests.programs import ROOT
from tests.python.torch_programs import simulated

# In MiB that are missing from before: 60 of weights and 2 of a buffer, 100 of the cache, 8 of the
# runtime, 6 of a workspace.
STEPS = [
    ["sleep 1", 176, "SUSPENDED"],
    ["wake_up weights", 100, "RUNNING"],
    ["wake_up kv_cache", 0, "RUNNING"],
    ["sleep 2", 176, "SUSPENDED"],
    ["discard too", 176, "SUSPENDED"],
    ["wake_up", 0, "RUNNING"],
    ["discard", 100, "SUSPENDED"],
    ["wake_up kv_cache", 0, "RUNNING"],
]


def assert_slept(found: dict[str, Any]) -> None:
    assert found["steps"] == STEPS * 3
    assert all(found["good"])
    assert found["places"]
    assert found["flags"] == [True, True, True]
    assert "serves one engine of a process" in found["another engine"]
    assert found["logged"] == []


def test_memory_of_a_worker() -> None:
    found = simulated("vllm_backend.py", "stub", "ferro_alloc", "installed", memory="2GiB")
    assert_slept(found)
    assert found["pools of vLLM"] == 0


def test_memory_of_vllms_own_allocator_sleeps_too() -> None:
    found = simulated("vllm_backend.py", "stub", "ferro_alloc", "installed", memory="2GiB")
    without, calls = found["calls"]
    assert without == []
    assert calls == [
        ["sleep", ["cudagraph", "runtime", "weights"]],
        ["wake_up", ["weights"]],
        ["wake_up", None],
        ["discard", ["kv_cache"]],
        ["wake_up", None],
    ]


def test_without_installation_the_backend_refuses() -> None:
    found = simulated("vllm_backend.py", "stub", "ferro_alloc", "not", memory="2GiB")
    assert not found["supported"]
    memory, sleep = found["refusals"]
    assert memory.startswith("FerroError: the sleep-mode backend 'ferro_alloc' of vLLM needs")
    assert "set FERRO_ALLOC=1" in memory
    assert sleep == "ValueError: ferro_alloc is not supported"
    assert "set FERRO_ALLOC=1" in found["logged"][0]


def test_engines_with_another_backend_are_unchanged() -> None:
    found = simulated("vllm_backend.py", "stub", "cumem", "installed", memory="2GiB")
    assert found == {"pools of vLLM": 4, "tags": [], "n": 3}


WITHOUT_VLLM = """\
import sys
from ferro_alloc.vllm_plugin import register
register()
print("torch" in sys.modules, "ferro_alloc._C" in sys.modules)
"""


def test_without_vllm_nothing_is_registered_or_loaded(run_program: RunProgram) -> None:
    assert run_program(WITHOUT_VLLM).stdout.split() == ["False", "False"]


def test_the_entry_point_is_declared() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    wanted = '[project.entry-points."vllm.general_plugins"]\nferro_alloc = "{}"\n'
    assert wanted.format("ferro_alloc.vllm_plugin:register") in text


@pytest.fixture(scope="module")
def mapping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("mapping") / "mapping.so"
    source = ROOT / "tests" / "cpp" / "preload" / "mapping.cpp"
    words = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-o", library]
    subprocess.run([*words, "-isystem", ferro_setup.cuda_include(13), source, "-ldl"], check=True)
    return library


@pytest.mark.parametrize("allocator", ["native", "ferro_alloc"])
def test_an_allocator_that_maps_its_memory_itself(
    allocator: str, mapping: Path, run_simulated: RunSimulated
) -> None:
    """vLLM's CuMemAllocator works like this: a MemPool over memory that it unmaps to sleep."""
    done = run_simulated("mapping_pool.py", allocator, str(mapping), memory="1GiB")
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["turns"] == [[True] * 4] * 5
    assert found["places"]
    assert found["left"] == 0
    if allocator != "native":
        assert found["not ours"] == [0, True]
