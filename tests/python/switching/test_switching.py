"""Switching between native and ferro_alloc in a running program, compared with native alone."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from tests.conftest import RunProgram, RunSimulated
from tests.python.torch_programs import Result, checks_of, simulated

CHECKS = checks_of("switching.py")
ORDERS = ("nothing_dropped", "graphs_first", "tensors_first", "pools_first", "at_exit", "thread")


@cache
def outcomes(allocators: str, **settings: Any) -> Result:
    """The outcomes of all checks, from one run."""
    return simulated("switching.py", allocators, memory="1GiB", **settings)


# Bytes. Under native a block of an earlier check stays in a segment of 20 MiB.
KEEPS_NOTHING = "repeated_switching_keeps_no_memory"


@pytest.mark.parametrize("name", CHECKS)
def test_as_without_switching(name: str) -> None:
    found, native = (outcomes(allocators)[name] for allocators in ("switch", "native"))
    assert "error" not in found, found["error"]
    assert "error" not in native, native["error"]
    if name == KEEPS_NOTHING:
        assert found["value"] <= native["value"]
    else:
        assert found["value"] == native["value"]


def test_as_late_as_streams_allow() -> None:
    found = outcomes("switch", mode="adversarial", seed=3, turn="0.003")
    assert not [outcome["error"] for outcome in found.values() if "error" in outcome]
    assert all(found["streams_are_waited_for"]["value"])


def test_with_the_classic_layout() -> None:
    """Both are PyTorch's own allocator then."""
    found = outcomes("switch", conf="layout:segments")
    del found["a_failure_reports_the_memory_of_the_other"]
    native = outcomes("native")
    assert not [outcome["error"] for outcome in found.values() if "error" in outcome]
    # The sizes of its blocks depend on what is cached, and native alone has other blocks cached.
    compared = set(found) - {
        "peaks_stay_between_earlier_bytes_and_the_sum",
        "the_earlier_cache_is_released",
        KEEPS_NOTHING,
    }
    assert {name: found[name] for name in compared} == {name: native[name] for name in compared}


@pytest.mark.parametrize("last", ["ferro", "native"])
@pytest.mark.parametrize("order", ORDERS)
def test_the_interpreter_ends_quietly(run_simulated: RunSimulated, order: str, last: str) -> None:
    ended = run_simulated("switching_exit.py", order, last, memory="1GiB", destructors=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_the_settings_tell_libraries_the_kind_of_memory() -> None:
    assert simulated("expandable_setting.py", memory="1GiB") == {
        "at first": False,
        "installed": True,
        "uninstalled": False,
        "installed late": True,
        "other settings changed": True,
        "uninstalled again": False,
        "the program said no": False,
        "the program's setting counts": False,
        "a pool of the allocator before": [False],
        "and after": True,
    }


@cache
def spellings(allocator: str, conf: str = "") -> Result:
    return simulated("setting_spellings.py", allocator, memory="1GiB", conf=conf)


@pytest.mark.parametrize("layout", ["pages", "segments"])
def test_each_spelling_of_settings_means_what_it_means_natively(layout: str) -> None:
    native = spellings("native")
    assert {bool(each["refused"]) for each in native.values()} == {True, False}
    assert spellings("ferro", f"layout:{layout}") == native


ENDS = ("native", "ferro")


# The meaning of each spelling is tested above; this tests that both variables are read as their
# owner reads them.
@pytest.mark.parametrize(
    ("variable", "text", "accepted"),
    [
        ("PYTORCH_ALLOC_CONF", " max_split_size_mb : 64 , ", True),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,,", False),
        *(
            pytest.param(variable, text, accepted, marks=pytest.mark.long)
            for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
            for text, accepted in (
                ("max_split_size_mb:64,", True),
                (" ", True),
                (",", False),
                ("MAX_SPLIT_SIZE_MB:64", False),
            )
        ),
    ],
)
def test_each_spelling_in_the_environment(
    run_simulated: RunSimulated, variable: str, text: str, accepted: bool
) -> None:
    done = run_simulated(
        "setting_in_environment.py",
        memory="1GiB",
        env={variable: text},
        start_anew=True,
        check=False,
    )
    # The import of torch may refuse already.
    found = json.loads(done.stdout) if done.returncode == 0 else dict.fromkeys(ENDS, False)
    assert found == dict.fromkeys(ENDS, accepted), done.stderr


def test_the_settings_say_that_segments_are_plain() -> None:
    found = simulated(
        "expandable_setting.py",
        memory="1GiB",
        conf="layout:segments",
        env={"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    )
    assert (found["at first"], found["installed"], found["uninstalled"]) == (True, False, True)


def test_cudagraph_trees() -> None:
    found = simulated("switching_trees.py", memory="4GiB")
    for refusal in ("refused", "refused in another thread"):
        assert "call torch.compiler.reset() first" in found.pop(refusal)
    assert found == {
        "installed": "ferro_alloc",
        "uninstalled": "native",
        "another function in the same trees": "native",
        "installed once more": "ferro_alloc",
        "new trees": "native",
        "left": [0, 0],
        "installed again": "ferro_alloc",
    }


# Their sizes fill the 1 GiB of the simulated GPU.
FILLING = {
    "both_have_one_memory_limit",
    "each_takes_the_unused_memory_of_the_other",
    "a_failure_reports_the_memory_of_the_other",
}


# The driver's own free memory, which it may count late: 20 MiB under native on an H100.
KEPT = "repeated_switching_keeps_no_memory"


@pytest.mark.gpu
def test_on_a_gpu(run_program: RunProgram) -> None:
    native, found = (
        json.loads(run_program("switching.py", allocators).stdout.splitlines()[-1])
        for allocators in ("native", "switch")
    )
    for name in set(CHECKS) - FILLING:
        assert "error" not in found[name], found[name]["error"]
        if name == KEPT:
            assert found[name]["value"] <= native[name]["value"]
        else:
            assert found[name] == native[name], name


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


@pytest.mark.parametrize("first", ["install", "uninstall"])
@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_peers_from_before_a_switch(first: str, conf: str) -> None:
    env = {"PYTORCH_CUDA_ALLOC_CONF": conf} if conf else None
    assert simulated("late_peers.py", first, count=2, env=env)["right"] == [True] * 6
