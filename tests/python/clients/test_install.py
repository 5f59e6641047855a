"""Installing: once, in time, with the right torch, or a refusal in one sentence."""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from ferro_alloc import Config, FerroError, __version__, allocator
from tests.conftest import RunProgram, RunSimulated
from tools.gpu import gpu_count

# Prints one JSON line, `report`, which each program fills.
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
except (ferro_alloc.FerroError, ValueError) as error:
    report["refusal"] = str(error)
report["installed"] = ferro_alloc.is_installed()
"""

# Allocates one more tensor of 3 MiB and reads torch's statistics and ours.
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
def test_without_a_driver_one_sentence_and_torch_works_as_before(run_program: RunProgram) -> None:
    program = PRELUDE + (
        "import ferro_alloc\n"
        "report['status'] = str(ferro_alloc.status())\n"
        + REFUSED
        + "import torch\nreport['sum'] = torch.ones(4).sum().item()\n"
    )
    found = seen(run_program(program).stdout)
    assert found["installed"] is False
    assert found["refusal"].startswith("ferro_alloc cannot be installed on this machine: ")
    assert is_one_sentence(found["refusal"])
    assert found["sum"] == 4.0
    assert found["status"].startswith("ferro_alloc: not installed")
    assert "problem" in found["status"]


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
        "ferro_alloc.install(ferro_alloc.Config(page_size_mb=4, idle_mb=8))\n"
        "try:\n"
        "    ferro_alloc.install(ferro_alloc.Config(page_size_mb=8, idle_mb=8))\n"
        "except ferro_alloc.FerroError as error:\n"
        "    report['refusal'] = str(error)\n"
        "report['config'] = str(ferro_alloc.status().config)\n"
    )
    found = seen(run_simulated(program).stdout)
    assert "installed with page_size_mb:4, not 8: settings do not change" in found["refusal"]
    assert "idle_mb" not in found["refusal"]
    assert is_one_sentence(found["refusal"])
    assert found["config"] == str(Config(page_size_mb=4, idle_mb=8))


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


@pytest.mark.parametrize(
    ("first", "then", "named"),
    [
        ("page_size_mb=2", "page_size_mb=8", "page_size_mb is 2 and not 8"),
        ("layout='segments'", "layout='pages'", "layout is segments and not pages"),
    ],
)
def test_settings_that_cannot_change_are_refused_by_name(
    run_simulated: RunSimulated, first: str, then: str, named: str
) -> None:
    program = PRELUDE + (
        "import ferro_alloc, torch\n"
        f"ferro_alloc.install(ferro_alloc.Config({first}))\n"
        "x = torch.ones(8, device='cuda')\n"
        "ferro_alloc.uninstall()\n"
        "try:\n"
        f"    ferro_alloc.install(ferro_alloc.Config({then}))\n"
        "except ferro_alloc.FerroError as error:\n"
        "    report['refusal'] = str(error)\n"
        "report['backend'] = torch.cuda.get_allocator_backend()\n"
        "report['installed'] = ferro_alloc.is_installed()\n"
        f"ferro_alloc.install(ferro_alloc.Config({first}))\n"
        "report['again'] = torch.cuda.get_allocator_backend()\n"
    )
    found = seen(run_simulated(program).stdout)
    assert f"other settings than before: {named}, which cannot change" in found["refusal"]
    assert is_one_sentence(found["refusal"])
    assert (found["backend"], found["installed"]) == ("native", False)
    assert found["again"] == "ferro_alloc"


def test_all_other_settings_change_with_the_next_install(run_simulated: RunSimulated) -> None:
    program = PRELUDE + (
        "import ferro_alloc, torch\n"
        "MIB = 1 << 20\n"
        "def take(mib):\n"
        "    return torch.empty(mib * MIB, dtype=torch.uint8, device='cuda')\n"
        "def failure(mib):\n"
        "    try:\n"
        "        take(mib)\n"
        "    except torch.OutOfMemoryError as error:\n"
        "        return str(error).partition('verdict = ')[2].partition(':')[0]\n"
        "def use(**settings):\n"
        "    ferro_alloc.uninstall()\n"
        "    ferro_alloc.install(ferro_alloc.Config(**settings))\n"
        "    return str(ferro_alloc.status().config)\n"
        "use()\n"
        "kept = take(64)\n"
        "report['limit'] = [use(memory_limit_mb=128), failure(128)]\n"
        "report['headroom'] = [use(headroom_mb=512), failure(700)]\n"
        "report['idle'] = [use(idle_mb=32)]\n"
        "del kept\n"
        "torch.cuda.empty_cache()\n"
        "report['idle'].append(torch.cuda.memory_reserved() // MIB)\n"
        "report['none'] = [use(), failure(700)]\n"
    )
    assert seen(run_simulated(program, memory="1GiB").stdout) == {
        "limit": [str(Config(memory_limit_mb=128)), "LIMIT"],
        "headroom": [str(Config(headroom_mb=512)), "HEADROOM"],
        "idle": [str(Config(idle_mb=32)), 32],
        "none": [str(Config()), None],
    }


def test_how_much_may_wait_changes_with_the_next_install(run_simulated: RunSimulated) -> None:
    program = PRELUDE + (
        "import ferro_alloc, torch\n"
        "MIB = 1 << 20\n"
        "side = torch.cuda.Stream()\n"
        "host = torch.empty(64 * MIB, dtype=torch.uint8, pin_memory=True)\n"
        "def take():\n"
        "    return torch.empty(64 * MIB, dtype=torch.uint8, device='cuda')\n"
        "def grown(percent):\n"
        "    ferro_alloc.uninstall()\n"
        "    ferro_alloc.install(ferro_alloc.Config(in_flight_percent=percent))\n"
        "    torch.cuda.empty_cache()\n"
        "    used = take()\n"
        "    with torch.cuda.stream(side):\n"
        "        used.copy_(host, non_blocking=True)\n"
        "    used.record_stream(side)\n"
        "    before = torch.cuda.memory_reserved()\n"
        "    del used\n"
        "    kept = take()\n"
        "    more = torch.cuda.memory_reserved() - before\n"
        "    torch.cuda.synchronize()\n"
        "    return more // MIB\n"
        "report['grown'] = [grown(percent) for percent in (30, None, 0, 200, 30)]\n"
    )
    late = {"mode": "adversarial", "seed": 1}
    found = seen(run_simulated(program, env={"FERRO_SIM_TURN": "0.001"}, **late).stdout)
    # A stream that may not hold more waits for the copy; otherwise memory grows.
    assert found == {"grown": [0, 64, 0, 64, 0]}


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


def test_it_is_refused_with_a_user_made_allocator(run_simulated: RunSimulated) -> None:
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


DISPLACE = (
    "import ferro_alloc, torch\n"
    "ferro_alloc.install()\n"
    "torch._C._cuda_changeCurrentAllocator(torch._C._cuda_customAllocator(1, 1))\n"
)


def test_an_allocator_that_takes_its_place_is_noticed(run_simulated: RunSimulated) -> None:
    program = (
        PRELUDE + DISPLACE + REFUSED + "status = ferro_alloc.status()\n"
        "report['status'] = [status.installed, status.active, str(status).splitlines()[0]]\n"
        "ferro_alloc.uninstall()\n"
        "report['after'] = str(ferro_alloc.status()).splitlines()[0]\n"
    )
    found = seen(run_simulated(program).stdout)
    assert "found the allocator 'pluggable' in PyTorch's place" in found["refusal"]
    assert "ferro_alloc was installed before" in found["refusal"]
    assert is_one_sentence(found["refusal"])
    assert found["installed"] is False
    assert found["status"] == [
        True,
        False,
        "ferro_alloc: installed, not active: the allocator 'pluggable' has replaced it",
    ]
    assert found["after"] == "ferro_alloc: not installed"


def test_cudagraph_trees_of_before_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    container = SimpleNamespace(tree_manager=object())
    trees = SimpleNamespace(local=threading.local())
    trees.local.tree_manager_containers = {0: container}
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", cast(ModuleType, trees))

    def refused() -> bool:
        try:
            allocator._refuse_cudagraph_trees()
        except FerroError as error:
            return "call torch.compiler.reset() first" in str(error)
        return False

    assert refused()
    with ThreadPoolExecutor(1) as other:
        assert other.submit(refused).result()
        container.tree_manager = cast(object, None)
        assert not refused()
        assert not other.submit(refused).result()


@pytest.mark.parametrize("given", ["page_size_mb:2", {"page_size_mb": 2}, True])
def test_other_types_than_config_are_a_type_error(given: object) -> None:
    with pytest.raises(TypeError, match=r"expected a ferro_alloc\.Config, or None"):
        allocator.install(cast(Config, given))


STRICT = REFUSED.replace("install()", "install(strict=True)")


def test_strict_is_as_usual_where_all_is_well(run_simulated: RunSimulated) -> None:
    check_installed(seen(run_simulated(PRELUDE + STRICT + STRICT + USE).stdout))


def test_strict_refuses_to_be_installed_without_a_cache(run_simulated: RunSimulated) -> None:
    env = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    state = "report['status'] = str(ferro_alloc.status()).splitlines()[0]\n"
    found = seen(run_simulated(PRELUDE + STRICT + state, env=env).stdout)
    assert "installed and not active: caching is off" in found["refusal"]
    assert is_one_sentence(found["refusal"])
    assert (found["installed"], found["status"]) == (False, "ferro_alloc: not installed")
    found = seen(run_simulated(PRELUDE + REFUSED + state, env=env).stdout)
    assert (found["refusal"], found["installed"]) == (None, True)
    assert found["status"].startswith("ferro_alloc: installed, not active: caching is off")


def test_strict_refuses_settings_of_the_environment_that_are_not_in_force(
    run_simulated: RunSimulated,
) -> None:
    first = "import ferro_alloc\nferro_alloc.install(ferro_alloc.Config())\n"
    env = {"FERRO_ALLOC_CONF": "idle_mb:64"}
    found = seen(run_simulated(PRELUDE + first + STRICT, env=env).stdout)
    assert "installed with idle_mb:0, not 64" in found["refusal"]
    assert seen(run_simulated(PRELUDE + first + REFUSED, env=env).stdout)["refusal"] is None


def test_one_line_of_the_log_has_the_settings_in_force(run_simulated: RunSimulated) -> None:
    program = (
        "import logging, sys\n"
        "logging.basicConfig(level=logging.INFO, stream=sys.stdout)\n"
        "import ferro_alloc\n"
        "for _ in range(2):\n"
        "    ferro_alloc.install(ferro_alloc.Config(page_size_mb=4))\n"
    )
    env = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:24"}
    (line,) = run_simulated(program, env=env).stdout.splitlines()
    assert line == (
        f"INFO:ferro_alloc:ferro_alloc {__version__} is installed with {Config(page_size_mb=4)}; "
        "without an effect: max_split_size_mb:24"
    )


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
    assert "'page_size' is not an option" in found["refusal"]
    assert found["installed"] is False


def test_status_tells_sizes_in_gib_with_peaks_and_ratios(run_simulated: RunSimulated) -> None:
    program = PRELUDE + (
        "import ferro_alloc, torch\n"
        "ferro_alloc.install()\n"
        "x = torch.empty(3 << 29, dtype=torch.uint8, device='cuda')\n"
        "y = torch.empty(3 << 29, dtype=torch.uint8, device='cuda')\n"
        "del y\n"
        "(device,) = ferro_alloc.status().devices\n"
        "report['text'] = str(ferro_alloc.status())\n"
        "report['ratios'] = [device.ratio, device.peak_ratio]\n"
        "ferro_alloc.uninstall()\n"
        "report['uninstalled'] = str(ferro_alloc.status())\n"
    )
    found = seen(run_simulated(program, memory="4GiB", backing=False).stdout)
    first, *others = found["text"].splitlines()
    assert first == "ferro_alloc: installed, active"
    assert (
        "  device 0  allocated 1.50 GiB (peak 3.00 GiB), reserved 3.00 GiB (peak 3.00 GiB), "
        "reserved / allocated 2.000 (of the peaks 1.000); 1,536 pages of 2 MiB"
    ) in "\n".join(others)
    assert found["ratios"] == [2.0, 1.0]
    # The status shows remaining memory as long as it exists.
    assert found["uninstalled"].startswith("ferro_alloc: not installed\n")
    assert "allocated 1.50 GiB (peak 3.00 GiB), reserved 1.50 GiB" in found["uninstalled"]


def test_status_tells_what_lies_beside_live_bytes(run_simulated: RunSimulated) -> None:
    program = PRELUDE + (
        "import ferro_alloc, torch\n"
        "ferro_alloc.install()\n"
        "x = torch.empty(512, dtype=torch.uint8, device='cuda')\n"
        "(device,) = ferro_alloc.status().devices\n"
        "report['stranded'] = list(device.stranded.items())\n"
        "report['text'] = str(device)\n"
        "del x\n"
        "(device,) = ferro_alloc.status().devices\n"
        "report['later'] = [len(device.stranded), str(device)]\n"
    )
    found = seen(run_simulated(program).stdout)
    assert found["stranded"] == [[1, (2 << 20) - 512]]
    assert "; beside live bytes: 2.00 MiB on handles of 1 page; " in found["text"]
    assert found["later"][0] == 0
    assert "; beside live bytes: none; " in found["later"][1]


def test_status_names_ignored_settings(run_simulated: RunSimulated) -> None:
    program = "import ferro_alloc\nferro_alloc.install()\nprint(ferro_alloc.status())\n"
    env = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:24"}
    assert "ignored   max_split_size_mb:24" in run_simulated(program, env=env).stdout


def test_launcher_installs_before_the_program(run_simulated: RunSimulated) -> None:
    program = (
        "import sys\n"
        "open('shown.py', 'w').write('import ferro_alloc; print(ferro_alloc.is_installed())')\n"
        "from ferro_alloc.__main__ import main\n"
        "sys.exit(main(['run', 'shown.py']))\n"
    )
    assert run_simulated("import os, sys\nos.chdir(sys.path[0])\n" + program).stdout == "True\n"
