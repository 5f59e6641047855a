"""transformers' Trainer, with accelerate and peft, beside native and expandable segments."""

from __future__ import annotations

import pytest

from tests.python.client_sides import assert_no_more_memory, run_sides

pytest.importorskip("transformers", reason="transformers is not installed: make test-clients")


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_trainer(kind: str) -> None:
    sides = run_sides("client_trainer.py", kind)
    native = sides["native"].value
    assert native["steps"] == [24, 24, 24]
    assert native["devices"] == ["cuda:0"]
    assert native["kept"]
    for name, side in sides.items():
        assert side.value == native, name
    assert_no_more_memory(sides)
