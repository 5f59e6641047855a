"""On a full card, captures and requests in a pool take no memory that another graph writes."""

from __future__ import annotations

from functools import cache

import pytest

from tests.python.torch_programs import Result, simulated

NATIVE_POOLS = ("segments", "graph_segments")


@cache
def outcomes(allocator: str, max_split_mb: int) -> Result:
    """The program itself compares all bytes outside the graphs after each replay."""
    conf = f"max_split_size_mb:{max_split_mb}" if max_split_mb else ""
    env = {"PYTORCH_CUDA_ALLOC_CONF": conf} if conf else None
    return simulated("graphs_on_a_full_card.py", allocator, env=env, memory="512MiB")


@pytest.mark.parametrize(
    "max_split_mb",
    [24, pytest.param(40, marks=pytest.mark.long), pytest.param(0, marks=pytest.mark.long)],
)
@pytest.mark.parametrize("allocator", ["pages", *NATIVE_POOLS])
def test_replays_beside_a_full_card(allocator: str, max_split_mb: int) -> None:
    found = outcomes(allocator, max_split_mb)
    if allocator in NATIVE_POOLS:
        native = outcomes("native", max_split_mb)
        captures = [name for name in found if "eager" not in name]
        assert [found[name] for name in captures] == [native[name] for name in captures]
        assert "OutOfMemoryError" in found.values() or "AcceleratorError" in found.values()
    else:
        assert set(found.values()) == {"served"}
