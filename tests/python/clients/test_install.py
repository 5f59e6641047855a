"""Installing: once, in time, with the right torch, or a refusal in one sentence."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

import setup as ferro_setup
from ferro_alloc import Config, FerroError, _load, allocator
from tests.conftest import ROOT, RunProgram, RunSimulated
from tools.gpu import gpu_count
from tools.versions import VERSIONS

# Prints one JSON line with what it saw; `report` is filled by each program's own lines.
PRELUDE = """\
import atexit, json
report = {}
atexit.register(lambda: print(json.dumps(report)))
"""

REFUSED = """\
import ferro_alloc
try:
    ferro_alloc.install()
    report["refusal"] = None
except ferro_alloc.FerroError as error:
    report["refusal"] = str(error)
report["installed"] = ferro_alloc.is_installed()
"""

# One tensor of 3 MiB more, seen through torch's own statistics and through ours.
USE = """\
import torch
before = torch.cuda.memory_allocated()
x = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
report["grown"] = torch.cuda.memory_allocated() - before
report["backend"] = torch.cuda.get_allocator_backend()
report["reserved"] = torch.cuda.memory_reserved()
"""


def seen(output: str) -> dict[str, Any]:
    report = json.loads(output.splitlines()[-1])
    assert isinstance(report, dict)
    return report


def is_one_sentence(text: str) -> bool:
    return "\n" not in text and len(text) < 400


def test_importing_imports_no_torch_and_loads_no_driver(run_program: RunProgram) -> None:
    program = PRELUDE + (
        "import sys, ferro_alloc\n"
        "report['torch'] = 'torch' in sys.modules\n"
        "report['cuda'] = 'libcuda' in open('/proc/self/maps').read()\n"
        "report['installed'] = ferro_alloc.is_installed()\n"
    )
    found = seen(run_program(program).stdout)
    assert found == {"torch": False, "cuda": False, "installed": False}


@pytest.mark.skipif(gpu_count() > 0, reason="this machine has an NVIDIA GPU")
def test_without_a_driver_one_sentence(run_program: RunProgram) -> None:
    found = seen(run_program(PRELUDE + REFUSED).stdout)
    assert found["installed"] is False
    assert found["refusal"].startswith("ferro_alloc cannot be installed on this machine: ")
    assert is_one_sentence(found["refusal"])


@pytest.mark.skipif(gpu_count() > 0, reason="this machine has an NVIDIA GPU")
def test_after_a_refusal_torch_works_as_before(run_program: RunProgram) -> None:
    program = PRELUDE + REFUSED + "import torch\nreport['sum'] = torch.ones(4).sum().item()\n"
    assert seen(run_program(program).stdout)["sum"] == 4.0


@pytest.mark.skipif(gpu_count() > 0, reason="this machine has an NVIDIA GPU")
def test_status_of_a_machine_without_a_driver(run_program: RunProgram) -> None:
    result = run_program("import ferro_alloc\nprint(ferro_alloc.status())\n")
    assert result.stdout.startswith("ferro_alloc: not installed")
    assert "problem" in result.stdout


def check_installed(found: dict[str, Any]) -> None:
    assert found["refusal"] is None
    assert found["installed"] is True
    assert found["grown"] == 3 << 20
    assert found["reserved"] % (2 << 20) == 0
    assert found["reserved"] >= 3 << 20


def test_installed_on_the_simulated_gpu(run_simulated: RunSimulated) -> None:
    check_installed(seen(run_simulated(PRELUDE + REFUSED + USE).stdout))


@pytest.mark.gpu
def test_installed_on_a_gpu(run_program: RunProgram) -> None:
    check_installed(seen(run_program(PRELUDE + REFUSED + USE).stdout))


def test_installing_again_does_nothing(run_simulated: RunSimulated) -> None:
    program = PRELUDE + REFUSED + USE + REFUSED
    check_installed(seen(run_simulated(program).stdout))


def test_other_settings_after_the_first_are_refused(run_simulated: RunSimulated) -> None:
    program = PRELUDE + (
        "import ferro_alloc\n"
        "ferro_alloc.install(ferro_alloc.Config(page_size_mb=4))\n"
        "try:\n"
        "    ferro_alloc.install(ferro_alloc.Config(page_size_mb=8))\n"
        "except ferro_alloc.FerroError as error:\n"
        "    report['refusal'] = str(error)\n"
        "report['config'] = str(ferro_alloc.status().config)\n"
    )
    found = seen(run_simulated(program).stdout)
    assert "installed with page_size_mb:4" in found["refusal"]
    assert found["config"] == str(Config(page_size_mb=4))


def test_late_is_in_time(run_simulated: RunSimulated) -> None:
    program = PRELUDE + "import torch\ny = torch.ones(8, device='cuda')\n" + REFUSED + USE
    found = seen(run_simulated(program).stdout)
    check_installed(found)
    assert found["backend"] == "ferro_alloc"


def test_uninstalling_before_cuda_is_used_leaves_no_trace(run_simulated: RunSimulated) -> None:
    program = PRELUDE + (
        "import ferro_alloc\n"
        "ferro_alloc.uninstall()\n"
        "ferro_alloc.install(ferro_alloc.Config(page_size_mb=8))\n"
        "ferro_alloc.uninstall()\n"
        "import torch\n"
        "report['initialised'] = torch.cuda.is_initialized()\n"
        "report['backend'] = torch.cuda.get_allocator_backend()\n"
        "report['status'] = ferro_alloc.status().installed\n"
        "x = torch.ones(8, device='cuda')\n"
        "report['reserved'] = torch.cuda.memory_reserved()\n"
        "ferro_alloc.install(ferro_alloc.Config(page_size_mb=4))\n"
        "y = torch.ones(8, device='cuda')\n"
        "report['both'] = torch.cuda.memory_reserved()\n"
        "report['pages'] = ferro_alloc.status().devices[0].page_bytes\n"
    )
    found = seen(run_simulated(program).stdout)
    assert found == {
        "initialised": False,
        "backend": "native",
        "status": False,
        "reserved": 2 << 20,
        "both": 6 << 20,
        "pages": 4 << 20,
    }


def test_settings_cannot_change_by_installing_again(run_simulated: RunSimulated) -> None:
    program = PRELUDE + (
        "import ferro_alloc, torch\n"
        "ferro_alloc.install()\n"
        "x = torch.ones(8, device='cuda')\n"
        "ferro_alloc.uninstall()\n"
        "try:\n"
        "    ferro_alloc.install(ferro_alloc.Config(page_size_mb=8))\n"
        "except ferro_alloc.FerroError as error:\n"
        "    report['refusal'] = str(error)\n"
        "report['backend'] = torch.cuda.get_allocator_backend()\n"
        "report['installed'] = ferro_alloc.is_installed()\n"
        "ferro_alloc.install()\n"
        "report['again'] = torch.cuda.get_allocator_backend()\n"
    )
    found = seen(run_simulated(program).stdout)
    assert "other settings than before" in found["refusal"]
    assert is_one_sentence(found["refusal"])
    assert (found["backend"], found["installed"]) == ("native", False)
    assert found["again"] == "ferro_alloc"


def test_installing_calls_nothing_of_cuda(run_simulated: RunSimulated) -> None:
    program = PRELUDE + (
        "import ferro_alloc, torch\n"
        "from ferro_alloc import sim\n"
        "before = sim.counters()\n"
        "ferro_alloc.install()\n"
        "ferro_alloc.uninstall()\n"
        "ferro_alloc.install()\n"
        "report['unchanged'] = sim.counters() == before\n"
    )
    assert seen(run_simulated(program).stdout) == {"unchanged": True}


def test_beside_an_allocator_of_the_users_own_it_is_refused(run_simulated: RunSimulated) -> None:
    program = PRELUDE + (
        "import ferro_alloc, torch\n"
        "ferro_alloc.install()\n"
        "ferro_alloc.uninstall()\n"
        "torch._C._cuda_changeCurrentAllocator(torch._C._cuda_customAllocator(1, 1))\n"
        + REFUSED
        + "report['backend'] = torch.cuda.get_allocator_backend()\n"
    )
    found = seen(run_simulated(program).stdout)
    assert "found the allocator 'pluggable' in PyTorch's place" in found["refusal"]
    assert is_one_sentence(found["refusal"])
    assert (found["installed"], found["backend"]) == (False, "pluggable")


def test_cudagraph_trees_of_before_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    container = SimpleNamespace(tree_manager=object())
    trees = SimpleNamespace(local=SimpleNamespace(tree_manager_containers={0: container}))
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", cast(ModuleType, trees))
    with pytest.raises(FerroError, match=r"call torch\.compiler\.reset\(\) first"):
        allocator._refuse_cudagraph_trees()
    container.tree_manager = cast(object, None)
    allocator._refuse_cudagraph_trees()


def test_the_memory_limit_is_kept(run_simulated: RunSimulated) -> None:
    program = PRELUDE + (
        "import ferro_alloc, torch\n"
        "ferro_alloc.install()\n"
        "kept = torch.empty(40 << 20, dtype=torch.uint8, device='cuda')\n"
        "try:\n"
        "    torch.empty(40 << 20, dtype=torch.uint8, device='cuda')\n"
        "except torch.OutOfMemoryError as error:\n"
        "    report['refusal'] = str(error)\n"
        "report['reserved'] = torch.cuda.memory_reserved()\n"
        "report['allocated'] = torch.cuda.memory_allocated()\n"
    )
    env = {"FERRO_ALLOC_CONF": "memory_limit_mb:64"}
    found = seen(run_simulated(program, env=env).stdout)
    assert found["refusal"].startswith("CUDA out of memory. Tried to allocate 40.00 MiB")
    assert found["allocated"] == 40 << 20
    assert found["reserved"] <= 64 << 20


def test_a_bad_environment_is_refused(run_simulated: RunSimulated) -> None:
    env = {"FERRO_ALLOC_CONF": "page_size:2"}
    found = seen(run_simulated(PRELUDE + REFUSED, env=env).stdout)
    assert "'page_size' is no option" in found["refusal"]
    assert found["installed"] is False


def test_status_names_ignored_settings(run_simulated: RunSimulated) -> None:
    program = "import ferro_alloc\nferro_alloc.install()\nprint(ferro_alloc.status())\n"
    env = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    assert "ignored   max_split_size_mb:64" in run_simulated(program, env=env).stdout


def test_launcher_installs_before_the_program(run_simulated: RunSimulated) -> None:
    program = (
        "import sys\n"
        "open('shown.py', 'w').write('import ferro_alloc; print(ferro_alloc.is_installed())')\n"
        "from ferro_alloc.__main__ import main\n"
        "sys.exit(main(['run', 'shown.py']))\n"
    )
    assert run_simulated("import os, sys\nos.chdir(sys.path[0])\n" + program).stdout == "True\n"


# ---- versions


@pytest.mark.parametrize(
    ("built", "running"),
    [
        (("2.11.0+cu130", "13.0"), ("2.11.0+cu130", "13.0")),
        (("2.11.0", "13.0"), ("2.11.1", "13.0")),
        (("2.11.0", "13.0"), ("2.11.0", "13.2")),
        (("2.11.0+cu130", "13.0"), ("2.11.0a0+git123", "13.0")),
    ],
)
def test_same_minor_version_is_accepted(
    built: tuple[str, str], running: tuple[str, str | None]
) -> None:
    _load.check_versions(built, running)


@pytest.mark.parametrize(
    ("running", "named"),
    [
        (("2.12.0+cu130", "13.0"), "torch 2.12.0+cu130 with CUDA 13.0 is running"),
        (("2.15.0", "13.2"), "torch 2.15.0 with CUDA 13.2 is running"),
        (("2.11.0+cu128", "12.8"), "torch 2.11.0+cu128 with CUDA 12.8 is running"),
        (("2.11.0+cpu", None), "torch 2.11.0+cpu has no CUDA"),
    ],
)
def test_another_torch_is_refused_before_it_can_crash(
    running: tuple[str, str | None], named: str
) -> None:
    with pytest.raises(FerroError) as caught:
        _load.check_versions(("2.11.0+cu130", "13.0"), running)
    message = str(caught.value)
    assert "built for torch 2.11.0+cu130 with CUDA 13.0" in message
    assert named in message
    assert "install" in message
    assert is_one_sentence(message)


@pytest.mark.parametrize("version", ["2.1.1", "2.10.2", "2.16.0a0", "3.11.0"])
def test_a_torch_outside_the_range_is_refused(version: str) -> None:
    with pytest.raises(FerroError) as caught:
        _load.check_versions(("2.11.0", "13.0"), (version, "13.0"))
    message = str(caught.value)
    assert f"supports torch 2.11 to 2.15, and torch {version} is running" in message
    assert is_one_sentence(message)


def test_the_range_is_the_same_everywhere() -> None:
    oldest, newest = _load.SUPPORTED
    assert ferro_setup.supported_torch() == (oldest, (newest[0], newest[1] + 1))
    tested = [ferro_setup.minor_version(version.torch) for version in VERSIONS]
    assert tested == [(2, minor) for minor in range(oldest[1], newest[1] + 1)]
    assert "torch 2.11 to 2.15 for CUDA 13" in (ROOT / "README.md").read_text()
    table = (ROOT / "docs" / "compatibility.md").read_text()
    for version in VERSIONS:
        assert f"| {version.minor} | {version.torch}, CUDA {version.cuda} |" in table


def test_running_torch_is_read_without_importing_it(run_program: RunProgram) -> None:
    program = (
        "import sys\nfrom ferro_alloc import _load\nfound = _load.running_torch()\n"
        "assert 'torch' not in sys.modules\nimport torch\n"
        "assert found == (str(torch.__version__), torch.version.cuda) == _load.running_torch()\n"
    )
    run_program(program)


def test_an_unbuilt_checkout_says_how_to_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ferro_alloc._build_info", None)
    with pytest.raises(FerroError, match="is not built: run `make build`"):
        _load.built_for()
