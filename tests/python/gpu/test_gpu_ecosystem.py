"""Libraries and tools around PyTorch on a GPU: the same under ferro_alloc as under native."""

from __future__ import annotations

import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest

from tests import programs
from tests.programs import ROOT, Completed, find_program
from tests.python.torch_programs import checks_of
from tools.gpu import gpu_count

pytestmark = pytest.mark.gpu

needs_two = pytest.mark.skipif(gpu_count() < 2, reason="needs two GPUs")


def last_object(done: Completed) -> dict[str, Any]:
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        pytest.fail(f"the program ended with {done.returncode}\n{done.stdout}{done.stderr}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


@cache
def run(program: str, *arguments: str) -> dict[str, Any]:
    """The results of all checks of a program."""
    words = [sys.executable, find_program(program), *arguments]
    return last_object(programs.run(words, None, ROOT))


def compare(program: str, name: str) -> None:
    found, native = (run(program, allocator)[name] for allocator in ("ferro", "native"))
    assert "error" not in native, native["error"]
    assert "error" not in found, found["error"]
    assert found["value"] == native["value"]


@pytest.mark.parametrize("name", checks_of("gpu_ecosystem.py"))
def test_on_one_gpu(name: str) -> None:
    compare("gpu_ecosystem.py", name)


SHARING = (("ferro", "ferro", False), ("ferro", "ferro", True), ("ferro", "native", False),
           ("native", "ferro", False), ("native", "native", False))  # fmt: skip


@cache
def shared(producer: str, consumer: str, refuse_pidfd: bool) -> dict[str, Any]:
    options = json.dumps({"sim": None, "refuse_pidfd": refuse_pidfd})
    return run("sharing.py", producer, consumer, options)


@pytest.mark.parametrize("pair", SHARING, ids=lambda pair: "-".join(map(str, pair)))
@pytest.mark.parametrize("name", checks_of("sharing.py"))
def test_sharing_between_processes(pair: tuple[str, str, bool], name: str) -> None:
    found, native = shared(*pair)[name], shared("native", "native", False)[name]
    assert "error" not in native, native["error"]
    assert "error" not in found, found["error"]
    assert found["value"] == native["value"]


@needs_two
@pytest.mark.parametrize("name", checks_of("gpu_peers.py"))
def test_on_two_gpus_in_one_process(name: str) -> None:
    compare("gpu_peers.py", name)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@cache
def ranks(allocator: str, registered_by: str) -> list[dict[str, Any]]:
    """The results of the two ranks."""
    port, program = free_port(), find_program("gpu_ranks.py")

    def run_rank(rank: int) -> dict[str, Any]:
        words = [sys.executable, program, allocator, str(rank), port, registered_by]
        return last_object(programs.run(words, None, ROOT))

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run_rank, (0, 1)))


@needs_two
@pytest.mark.parametrize("registered_by", ["pool", "hook"])
@pytest.mark.parametrize("layout", ["pages", "plain", "segments"])
@pytest.mark.parametrize(
    "what", ["sums", "pool", "around", "data_parallel", "sharded", "other_device"]
)
def test_two_ranks(layout: str, what: str, registered_by: str) -> None:
    found, native = ranks(layout, registered_by), ranks("native", registered_by)
    assert [result[what] for result in found] == [result[what] for result in native]


@needs_two
@pytest.mark.parametrize("registered_by", ["pool", "hook"])
@pytest.mark.parametrize("layout", ["pages", "plain"])
def test_pages_move_around_what_nccl_knows(layout: str, registered_by: str) -> None:
    for result in ranks(layout, registered_by):
        assert result["moves"] > 0
        assert result["around"] == [[0, 0, 0, 0]] * 2
