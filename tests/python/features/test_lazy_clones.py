"""The order of the copy of a shared storage."""

from __future__ import annotations

from typing import Any

import pytest

from tests.python.torch_programs import simulated


@pytest.mark.parametrize("first", ["default_stream", "own_stream"])
@pytest.mark.parametrize("seed", range(2))
def test_a_lazy_clone_waits_for_the_stream_that_had_its_memory(seed: int, first: str) -> None:
    late: dict[str, Any] = {"mode": "adversarial", "seed": seed, "turn": "0.001"}
    found = simulated("lazy_clones.py", first, memory="256MiB", **late)
    assert found == {"transfers": 1, "read by its stream": True, "read later": True}
