"""Ranks train under ferro_alloc as under native, and as one process does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import RunSimulated

Found = list[dict[str, Any]]


@pytest.mark.long
def test_ranks_train_as_one_process_does(run_simulated: RunSimulated) -> None:
    reserved = {}
    for allocator in ("native", "ferro_alloc"):
        done = run_simulated("sim_ranks.py", "4", "training", allocator, count=4)
        every: Found = json.loads(done.stdout.splitlines()[-1])
        assert len(every) == 4
        for found in every:
            assert found["data parallel"] == pytest.approx(found["alone"], rel=1e-4)
            assert found["sharded"] == pytest.approx(found["alone"], rel=1e-4)
            assert found["unknown"] == []
            assert found["not simulated"] == ["calls that are not simulated: none"]
        reserved[allocator] = [found["reserved"] for found in every]
    assert len({*reserved["native"]}) == 1
    assert max(reserved["ferro_alloc"]) <= reserved["native"][0]
