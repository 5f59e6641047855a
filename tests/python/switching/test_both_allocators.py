"""Properties of ferro_alloc's pages and memory of PyTorch's own allocator in one process."""

from __future__ import annotations

from functools import cache

import pytest

from tests.python.torch_programs import Result, checks_of, simulated

CHECKS = checks_of("both_allocators.py")


@cache
def outcomes() -> Result:
    return simulated("both_allocators.py", "ferro", memory="1GiB")


@pytest.mark.parametrize("name", CHECKS)
def test_both_together(name: str) -> None:
    found = outcomes()[name]
    assert "error" not in found, found["error"]
    assert found["value"] is True
