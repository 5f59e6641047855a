"""transformers' Trainer with accelerate and peft, compared with native and expandable segments."""

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


def test_a_batch_that_does_not_fit_raises_the_same_message() -> None:
    sides = run_sides("client_trainer.py", "large", allocators=("native", "pages"), memory="2GiB")
    assert sides["native"].value == {"raised": "CUDA out of memory. "}
    for name, side in sides.items():
        assert side.value == sides["native"].value, name


def test_accelerate_finds_a_batch_that_fits() -> None:
    """accelerate halves the batch when it recognises PyTorch's message."""
    sides = run_sides("client_trainer.py", "halved", allocators=("native", "pages"), memory="2GiB")
    native = sides["native"].value
    assert native["steps"] == 2
    assert native["batch"] < 256
    for name, side in sides.items():
        assert side.value["steps"] == 2, name
        assert side.value["batch"] >= native["batch"], name
