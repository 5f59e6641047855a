"""DeepSpeed's ZeRO stage 1 on one rank, compared with native and expandable segments."""

from __future__ import annotations

import pytest

from tests.python.client_sides import assert_no_more_memory, run_sides

pytest.importorskip("deepspeed", reason="deepspeed is not installed: make test-clients")


def test_zero_one() -> None:
    # DeepSpeed reads norms to decide whether it steps: without contents they are zero.
    sides = run_sides("client_deepspeed.py", backing=False)
    native = sides["native"].value
    assert native["steps"] == [12, 12, 24]
    assert native["skipped"] == 0
    assert (native["stage"], native["device"]) == (1, "cuda:0")
    assert (native["dtypes"], native["master"]) == (["torch.bfloat16"], ["torch.float32"])
    for name, side in sides.items():
        assert side.value == native, name
    assert_no_more_memory(sides)
