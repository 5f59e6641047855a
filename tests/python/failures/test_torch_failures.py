"""Failures as PyTorch shows them, several devices, snapshots: equal to native, except where
listed."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.conftest import RunSimulated
from tests.python.torch_programs import Result, checks_of, simulated

UNKNOWN, OUT_OF_MEMORY = "999", "2"
SMALL = {"memory": "256MiB"}
PROGRAMS_ON: dict[tuple[str, int], dict[str, Any]] = {
    ("features_refusals.py", 1): SMALL,
    ("features_failures.py", 1): SMALL,
    ("features_devices.py", 2): {**SMALL, "count": 2},
    ("features_snapshots.py", 2): {**SMALL, "count": 2},
    ("features_snapshots.py", 4): {**SMALL, "count": 4},
}
# Also on four devices.
ON_TWO = ("features_snapshots.py", 2)
CHECKS = [(program, count, name) for program, count in PROGRAMS_ON for name in checks_of(program)]
# Calls whose refusals torch sees; others are handled, or noticed by the next call.
SEEN = ("cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess")
NEVER_SEEN = ("cuMemFree", "cuMemRelease", "cuMemUnmap")


@cache
def outcomes(program: str, count: int, allocator: str) -> Result:
    return simulated(program, allocator, **PROGRAMS_ON[program, count])


@pytest.mark.parametrize("allocator", ["ferro", "segments"])
@pytest.mark.parametrize(
    ("program", "count", "name"),
    [
        pytest.param(*check, marks=pytest.mark.long if check[:2] == ON_TWO else ())
        for check in CHECKS
    ],
)
def test_as_native(program: str, count: int, name: str, allocator: str) -> None:
    found, native = (outcomes(program, count, which)[name] for which in (allocator, "native"))
    assert "error" not in found, found["error"]
    assert "error" not in native, native["error"]
    assert found["value"] == native["value"]


@pytest.mark.parametrize("result", [UNKNOWN, OUT_OF_MEMORY])
def test_each_driver_call_refused_once(result: str) -> None:
    found = simulated("torch_every_fault.py", "ferro", result, memory="128MiB")
    for function in SEEN:
        refused, seen = found[function]
        assert refused > 0
        # A momentary lack of memory is handled.
        assert (seen > 0) == (result == UNKNOWN), function
    for function in NEVER_SEEN:
        assert found[function][1] == 0, function
    assert sum(refused for refused, _ in found.values()) > 20
    if result == UNKNOWN:
        assert found["cuCtxRecordEvent"][0] > 0


# Each state with the orders that affect its objects.
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
    ended = run_simulated("torch_exit.py", state, order, memory="256MiB", destructors=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize("allocator", ["ferro", "observed"])
def test_a_child_that_only_frees_ends(run_simulated: RunSimulated, allocator: str) -> None:
    ended = run_simulated("torch_fork.py", allocator, "after", memory="256MiB")
    assert (ended.stdout, ended.stderr) == ("", "")


@pytest.mark.parametrize("allocator", ["ferro", pytest.param("segments", marks=pytest.mark.long)])
def test_children_end_that_were_forked_beside_threads(allocator: str) -> None:
    """Threads that do not exist in a child may have held any lock."""
    found = simulated("forks_beside_threads.py", allocator, "120", memory="2GiB")
    refused = (
        "RuntimeError Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
        "multiprocessing, you must use the 'spawn' start method"
    )
    [errors] = found["errors"]
    # PyTorch asks the runtime for the device first, which refuses, too.
    below = errors.pop("below torch")
    assert below.startswith("AcceleratorError CUDA error: initialization error")
    assert errors == {"zeros": refused, "raw": refused}


@pytest.mark.parametrize("allocator", ["ferro", "segments"])
def test_a_child_drops_each_kind_of_object(allocator: str) -> None:
    found = simulated("inherited_objects.py", allocator, memory="256MiB")
    assert set(found.values()) == {0}, found


def test_a_negative_size_is_named(run_simulated: RunSimulated) -> None:
    program = (
        "import ferro_alloc, torch\n"
        "ferro_alloc.install()\n"
        "storage = torch.empty(8, device='cuda').untyped_storage()\n"
        "allocate = torch.cuda.caching_allocator_alloc\n"
        "for call, size in ((allocate, -1), (allocate, '7'), (storage.resize_, -512)):\n"
        "    try:\n"
        "        call(size)\n"
        "    except torch.OutOfMemoryError as error:\n"
        "        print(str(error).splitlines()[0])\n"
    )
    sentence = "CUDA out of memory. Tried to allocate {} bytes, a negative size."
    ended = run_simulated(program, memory="256MiB")
    assert ended.stdout.splitlines() == [sentence.format(size) for size in (-1, -1, -512)]


@pytest.mark.parametrize("layout", ["pages", "segments"])
def test_a_limit_from_the_settings(run_simulated: RunSimulated, layout: str) -> None:
    program = (
        "import ferro_alloc, torch\n"
        f"ferro_alloc.install(ferro_alloc.Config(memory_limit_mb=64, layout={layout!r}))\n"
        "def take(size): return torch.empty(size << 20, dtype=torch.uint8, device='cuda')\n"
        "kept = [take(20), take(20)]\n"
        "try:\n"
        "    take(30)\n"
        "except torch.OutOfMemoryError as error:\n"
        "    print('64.00 MiB allowed; ' in str(error))\n"
        "del kept\n"
        "print(take(60).numel() >> 20, torch.cuda.memory_reserved() <= 64 << 20)\n"
    )
    ended = run_simulated(program, memory="256MiB")
    assert ended.stdout.split() == ["True", "60", "True"]


@pytest.mark.parametrize("mode", ["eager", "adversarial"])
@pytest.mark.parametrize("allocator", ["native", "ferro_alloc"])
def test_destroyed_streams(allocator: str, mode: str) -> None:
    found = simulated("gone_stream.py", allocator, memory="2GiB", mode=mode)
    assert found["reserved"] <= 20


@pytest.mark.parametrize(
    ("streams", "pools"), [(500, 2500), pytest.param(2000, 10_000, marks=pytest.mark.long)]
)
def test_addresses_are_enough_for_many_streams_and_pools(streams: int, pools: int) -> None:
    """On eight devices of 192 GiB; a heap once reserved 9/8 of its device: enough for 600 heaps."""
    words = ("many_streams_and_pools.py", str(streams), str(pools))
    found = simulated(*words, count=8, memory="192GiB")
    many = streams + pools
    assert found == {"devices": 8, "host": True, "wrong": 0, "numbers": many, "large": 64}


def test_wrong_calls_about_pools_name_the_allocator() -> None:
    error = simulated("own_assertions.py", memory="256MiB")["error"]
    assert "ferro_alloc: releasePool: pool (0, 12345)" in error
    assert "PyTorch" not in error


@pytest.mark.parametrize("layout", ["pages", "segments"])
def test_a_request_of_exactly_the_cap_is_served(layout: str) -> None:
    """The total is one for which a truncated fraction is a byte short."""
    found = simulated("fractions.py", layout, backing=False)
    assert found["truncated"] > 0
    assert (found["refused"], found["beyond"]) == ([], 65)
