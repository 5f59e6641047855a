"""Lightning's Trainer, compared with native and expandable segments."""

from __future__ import annotations

import pytest

from tests.python.client_sides import assert_no_more_memory, run_sides

pytest.importorskip(
    "pytorch_lightning", reason="pytorch_lightning is not installed: make test-clients"
)


def test_fit_checkpoint_and_resume() -> None:
    sides = run_sides("client_lightning.py")
    native = sides["native"].value
    assert native["steps"] == [12, 24]
    assert native["saved"] == ["step=12.ckpt"]
    # A step has two batches; the batches of the first twelve steps are not repeated.
    assert native["batches"] == 24
    assert native["seen"][0] == ["cuda:0", 4, 64]
    assert native["logged"] == ["train_loss", "validation_loss"]
    for name, side in sides.items():
        assert side.value == native, name
    assert_no_more_memory(sides)
