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


def stress(run_program: RunProgram, seconds: int, mistake: str) -> dict[str, Any]:
    words = ("gpu_stress.py", "ferro_alloc", str(seconds), mistake)
    done = run_program(*words, timeout=seconds + 120)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["failures"] == []
    assert found["reserved"] <= found["limit"]
    return found


def test_many_streams_and_threads_under_a_limit(run_program: RunProgram) -> None:
    """For FERRO_STRESS_SECONDS, 15 unless it is set; every byte is checked on the device."""
    found = stress(run_program, int(os.environ.get("FERRO_STRESS_SECONDS", "15")), "none")
    assert found["wrong"] == 0
    assert found["counts"]["checked"] > 1000
    device = found["device"]
    assert device["moved"] > 100
    assert device["handed_over"] > 100
    assert device["ladder"]["stream_wait"] > 10


def test_the_stress_would_notice(run_program: RunProgram) -> None:
    assert stress(run_program, 10, "record_stream")["wrong"] > 0
