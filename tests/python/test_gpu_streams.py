"""Streams and threads on a GPU: memory is never handed out while something may still use it."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.conftest import RunProgram

pytestmark = pytest.mark.gpu


def test_memory_used_by_slow_streams_and_by_threads(run_program: RunProgram) -> None:
    found: list[dict[str, Any]] = []
    for allocator in ("native", "ferro_alloc"):
        done = run_program("gpu_streams.py", allocator, timeout=120)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    native, ferro = found
    assert ferro["losses"] == native["losses"]
    # What is not recorded is reused at once, so the program would have noticed.
    assert ferro["reused_without_record"] >= 1


def test_memory_of_streams_that_are_gone(run_program: RunProgram) -> None:
    for allocator in ("native", "ferro_alloc"):
        done = run_program("gone_stream.py", allocator, timeout=120)
        assert json.loads(done.stdout.splitlines()[-1])["reserved"] <= 20


def test_many_streams_and_threads_under_a_limit(run_program: RunProgram) -> None:
    """For FERRO_STRESS_SECONDS, 15 unless it is set; every byte is checked on the device."""
    seconds = int(os.environ.get("FERRO_STRESS_SECONDS", "15"))
    words = ("gpu_stress.py", "ferro_alloc", str(seconds), "none")
    done = run_program(*words, timeout=seconds + 120)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["failures"] == []
    assert found["reserved"] <= found["limit"]
    assert found["wrong"] == 0
    assert found["counts"]["checked"] > 1000
    device = found["device"]
    assert device["moved"] > 100
    assert device["handed_over"] > 100
    assert device["ladder"]["stream_wait"] > 0


def test_the_stress_would_notice(run_program: RunProgram) -> None:
    words = ("gpu_stress.py", "ferro_alloc", "10", "record_stream")
    done = run_program(*words, check=False, timeout=120)
    if done.returncode == 0:
        assert json.loads(done.stdout.splitlines()[-1])["wrong"] > 0
    else:
        # A page may have left the address that the other stream still reads.
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in done.stderr, done.stderr
