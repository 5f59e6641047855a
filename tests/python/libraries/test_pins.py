"""Pinned memory stays in place; the unit tests check which pages stay."""

from __future__ import annotations

from tests.python.torch_programs import simulated


def test_pinned_memory_stays() -> None:
    assert simulated("pins.py", memory="1GiB") == {
        "range": [True, 8 << 20],
        "pages of a freed range": 8,
        "serve the next block": True,
        "after": 0,
        "a tensor is kept alive": 40,
        "until it is unpinned": [0, 0],
        "no new handle to share it": True,
        "of the allocator before": True,
        "refused": [True] * 4,
        "empty": 0,
    }
