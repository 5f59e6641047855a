"""Out of memory on a GPU, and how much of it is used."""

from __future__ import annotations

import json

import pytest

from tests.conftest import RunProgram

pytestmark = pytest.mark.gpu


def test_out_of_memory_is_survived_and_reports_are_true(run_program: RunProgram) -> None:
    done = run_program("gpu_limits.py", "ferro_alloc")
    result = json.loads(done.stdout.splitlines()[-1])
    # Free pages between live blocks become one block.
    assert result["holes_served"]
    assert "of which" in result["message"]
