"""Streams and threads on a GPU: memory is never handed out while something may still use it."""

from __future__ import annotations

import json
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
