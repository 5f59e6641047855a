"""Streams and threads on a GPU: memory is never handed out while something may still use it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import Any

import pytest

from tests import programs
from tests.conftest import RunProgram
from tests.programs import Completed, find_program

pytestmark = pytest.mark.gpu


def test_memory_used_by_slow_streams_and_by_threads(run_program: RunProgram) -> None:
    found: list[dict[str, Any]] = []
    for allocator in ("native", "ferro_alloc"):
        done = run_program("gpu_streams.py", allocator)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    native, ferro = found
    assert ferro["losses"] == native["losses"]
    # Memory without the record is reused at once, so the program would notice errors.
    assert ferro["reused_without_record"] >= 1


def test_memory_of_destroyed_streams(run_program: RunProgram) -> None:
    for allocator in ("native", "ferro_alloc"):
        done = run_program("gone_stream.py", allocator)
        assert json.loads(done.stdout.splitlines()[-1])["reserved"] <= 20


@pytest.mark.parametrize("uses", ["record", "wait"])
def test_many_streams_and_threads_under_a_limit(run_program: RunProgram, uses: str) -> None:
    """For FERRO_STRESS_SECONDS, 15 unless it is set; every byte is checked on the device."""
    seconds = int(os.environ.get("FERRO_STRESS_SECONDS", "15"))
    words = ("gpu_stress.py", "ferro_alloc", str(seconds), uses)
    done = run_program(*words)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["failures"] == []
    assert found["reserved"] <= found["limit"]
    assert found["wrong"] == 0
    assert found["counts"]["checked"] > 1000
    device = found["device"]
    assert device["moved"] > 100
    assert device["transferred"] > 100


@pytest.mark.parametrize("mistake", ["forget", "forget_wait"])
def test_the_stress_would_notice(run_program: RunProgram, mistake: str) -> None:
    words = ("gpu_stress.py", "ferro_alloc", "10", mistake)
    done = run_program(*words, check=False)
    if done.returncode == 0:
        assert json.loads(done.stdout.splitlines()[-1])["wrong"] > 0
    else:
        # A page may have left the address that the other stream still reads.
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in done.stderr, done.stderr


READS_BEYOND_ITS_PAGES = """
import ferro_alloc
ferro_alloc.install()
import torch
block = torch.empty(8 << 20, dtype=torch.int64, device="cuda")
class TooLong:
    __cuda_array_interface__ = {**block.__cuda_array_interface__, "shape": (1 << 27,)}
torch.as_tensor(TooLong, device="cuda").sum().item()
"""
"""Of 64-bit numbers, because bytes would be made into such before they are added, in memory of
their own; and that lies right behind the block, where it would be read without an error."""


def check_memory(*command: str) -> Completed:
    """`python COMMAND` under compute-sanitizer's memcheck, which ends with 9 if it finds errors."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        pytest.skip("there is no compute-sanitizer on this machine")
    words = [tool, "--tool", "memcheck", "--error-exitcode", "9", sys.executable, *command]
    return programs.run(words)


def test_compute_sanitizer_finds_nothing_while_pages_move() -> None:
    trial = check_memory("-c", "import torch; torch.zeros(1, device='cuda').item()")
    if trial.returncode != 0:
        pytest.skip(f"compute-sanitizer does not work here: {trial.stdout.strip()[-200:]}")
    noticed = check_memory("-c", READS_BEYOND_ITS_PAGES)
    assert noticed.returncode != 0
    assert "Invalid __global__ read" in noticed.stdout
    done = check_memory(str(find_program("gpu_stress.py")), "ferro_alloc", "15", "record")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "ERROR SUMMARY: 0 errors" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("{"))
    found = json.loads(line)
    assert found["failures"] == []
    assert found["wrong"] == 0
    assert found["device"]["moved"] > 0
    assert found["device"]["moved"] + found["device"]["transferred"] > 100
