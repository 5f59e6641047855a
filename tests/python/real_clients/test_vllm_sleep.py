"""vLLM's CuMemAllocator, which implements its sleep mode, compared with native."""

from __future__ import annotations

import pytest

from tests.python.client_sides import assert_no_more_memory, run_sides

pytest.importorskip("vllm", reason="vllm is not installed: make test-clients")

MIB = 1 << 20


def test_sleep_and_wake_up() -> None:
    sides = run_sides("client_vllm_sleep.py", memory="4GiB")
    native = sides["native"].value
    assert native["held"] == [True]
    # Weights and cache, in segments.
    assert native["usage"][0] == native["usage"][1] >= (9 + 24) * MIB
    assert {level for level, _ in native["freed"]} == {"level 1", "level 2"}
    assert {freed for _, freed in native["freed"]} == {native["usage"][0]}
    for name, side in sides.items():
        assert side.value == native, name
    assert_no_more_memory(sides)
