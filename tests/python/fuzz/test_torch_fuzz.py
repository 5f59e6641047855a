"""A part of the fuzzing at PyTorch's level; docs/testing.md describes longer runs."""

from __future__ import annotations

import pytest

from tests.python.random_programs import fuzzed

OFTEN = ("allocate", "free", "replay", "capture", "allocate_in_pool", "resize", "record_stream")
EACH = ("toggle_install", "toggle_caching", "history", "checkpoint", "snapshot", "thread")


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(11, 20_000), pytest.param(11, 50_000, marks=LONG), pytest.param(12, 50_000, marks=LONG)],
)
def test_memory_is_what_the_model_says(seed: int, steps: int) -> None:
    found = fuzzed("--seed", str(seed), "--steps", str(steps), "--seconds", "15")
    assert found["good"], f"seed {seed}: stopped at step {found['steps']}"
    assert found["steps"] > 1000
    assert all(found["done"][name] > 10 for name in OFTEN)
    assert all(found["done"][name] > 0 for name in EACH)
    assert found["allocated_at_end"] == found["reserved_at_end"] == 0
