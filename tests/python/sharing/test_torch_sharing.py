"""CUDA tensors shared with other processes and other devices, compared with native.

Two processes, each with its own simulated GPU, share real memory; either may run ferro_alloc or
PyTorch's own allocator, with or without expandable segments.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from tests.python.torch_programs import Result, assert_as_native, checks_of, simulated

# The producer's and the consumer's allocator, the order of work, and whether the kernel lets the
# consumer take descriptors.
PAIRS = [
    ("ferro", "ferro", "eager", False),
    ("ferro", "ferro", "adversarial", True),
    ("ferro", "native", "adversarial", False),
    ("expandable", "ferro", "eager", False),
    ("segments", "segments", "adversarial", False),
]
BRIEF = PAIRS[:2]
"""Each other pair needs a separate run of the program."""


@cache
def shared(producer: str, consumer: str, mode: str, refuse_pidfd: bool) -> Result:
    sim: dict[str, Any] = {"memory": "2GiB", "mode": mode, "seed": 11}
    # A new interpreter takes longer. The brief set has one pair for each start method.
    fork = producer == consumer and not refuse_pidfd
    options = json.dumps({"sim": sim, "refuse_pidfd": refuse_pidfd, "fork": fork})
    allocator = "native" if producer == "expandable" else producer
    env = (
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if producer == "expandable" else {}
    )
    return simulated("sharing.py", allocator, consumer, options, env=env, **sim)


@pytest.mark.parametrize("name", checks_of("sharing.py"))
@pytest.mark.parametrize(
    "pair",
    [pair if pair in BRIEF else pytest.param(pair, marks=pytest.mark.long) for pair in PAIRS],
    ids=lambda pair: "-".join(map(str, pair)),
)
def test_sharing_as_native(pair: tuple[str, str, str, bool], name: str) -> None:
    native = shared("native", "native", "eager", False)[name]
    found = shared(*pair)[name]
    assert "error" not in native, native["error"]
    assert "error" not in found, found["error"]
    assert found["value"] == native["value"]


@cache
def with_peers(allocator: str, count: int, mode: str) -> Result:
    return simulated("features_peers.py", allocator, memory="1GiB", count=count, mode=mode)


@pytest.mark.parametrize("layout", [pytest.param("native", marks=pytest.mark.long), "pages"])
def test_first_copies_of_threads_between_two_devices(layout: str) -> None:
    found = simulated("first_copies.py", layout, memory="1GiB", count=8)
    assert found == {"pairs": 56, "errors": []}


@pytest.mark.parametrize("name", checks_of("features_peers.py"))
@pytest.mark.parametrize(("count", "mode"), [(2, "adversarial"), (4, "eager")])
def test_peers_as_native(count: int, mode: str, name: str) -> None:
    native = with_peers("native", count, mode)[name]
    found = with_peers("ferro", count, mode)[name]
    assert "error" not in native, native["error"]
    assert "error" not in found, found["error"]
    assert found["value"] == native["value"]


@cache
def exports(allocator: str) -> Result:
    env = {}
    if allocator == "native":
        env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return simulated("features_exports.py", allocator, env=env, memory="1GiB")


@pytest.mark.parametrize("name", checks_of("features_exports.py"))
def test_driver_queries_of_libraries_as_under_native(name: str) -> None:
    assert_as_native(exports("ferro")[name], exports("native")[name])


@cache
def refusals() -> Result:
    return simulated("sharing_faults.py", "ferro", memory="1GiB", count=2)


@pytest.mark.parametrize(
    "function", ["cuCtxRecordEvent", "cuMemcpyDtoDAsync", "cuMemCreate", "cuMemMap", "cuMemUnmap"]
)
def test_a_driver_without_memory_does_not_matter(function: str) -> None:
    """Sharing does not copy, create, map or wait."""
    kind, _, intact, again = refusals()[function]
    assert (kind, intact, again) == ("", True, True)


def test_a_refusal_while_sharing_names_the_driver_call() -> None:
    kind, text, intact, again = refusals()["cuMemExportToShareableHandle"]
    assert kind == "AcceleratorError"
    assert "ferro_alloc: cuMemExportToShareableHandle failed with CUDA_ERROR_UNKNOWN" in text
    assert (intact, again) == (True, True)


def test_under_a_capture_a_block_is_shared_as_it_is() -> None:
    assert refusals()["under a capture"][0] == ""


def test_a_device_that_exports_nothing() -> None:
    kind, text = refusals()["not exportable"]
    assert kind == "RuntimeError"
    assert "cannot be shared between processes" in text


def test_handles_that_cannot_be_opened() -> None:
    for name, reason in {
        "a process that has ended": "the process that shared it has ended",
        "an unknown type": "unexpected or illformed shareable handle type",
        "half a handle": "ends too early",
        "released memory": "has released it since",
    }.items():
        kind, text = refusals()[name]
        assert (kind, reason in text) == ("RuntimeError", True), (name, text)


def test_without_a_socket_and_descriptors_memory_is_not_shared() -> None:
    kind, text = refusals()["no descriptors at all"]
    assert kind == "RuntimeError"
    assert "memory handles cannot be shared: half of the file descriptors" in text
    assert "was refused (socket: Too many open files). Raise ulimit -n." in text


@cache
def with_few_descriptors(pidfd: str) -> Result:
    return simulated("sharing_limits.py", "ferro", pidfd, memory="2GiB")


@pytest.mark.parametrize("name", checks_of("sharing_limits.py"))
@pytest.mark.parametrize("pidfd", [pytest.param("allow", marks=pytest.mark.long), "refuse"])
def test_sharing_with_few_descriptors(pidfd: str, name: str) -> None:
    found = with_few_descriptors(pidfd)[name]
    assert "error" not in found, found["error"]
    assert found["value"] is True


@cache
def beside_neighbours() -> Result:
    return simulated("sharing_neighbours.py", "ferro", memory="1GiB")


@pytest.mark.long
@pytest.mark.parametrize("name", checks_of("sharing_neighbours.py"))
def test_sharing_beside_neighbours(name: str) -> None:
    found = beside_neighbours()[name]
    assert "error" not in found, found["error"]
    assert found["value"] is True
