"""torchvision: a ResNet, and a detector with its own kernels, compared with native."""

from __future__ import annotations

import pytest

from tests.python.client_sides import assert_no_more_memory, run_sides

pytest.importorskip("torchvision", reason="torchvision is not installed: make test-clients")


def test_resnet() -> None:
    sides = run_sides("client_torchvision.py", "resnet")
    native = sides["native"].value
    assert native["shapes"][:2] == [[[8, 10], "torch.bfloat16"], [[4, 10], "torch.bfloat16"]]
    assert native["states"] == 161
    for name, side in sides.items():
        assert side.value == native, name
    assert_no_more_memory(sides)


def test_detector() -> None:
    sides = run_sides("client_torchvision.py", "detector")
    native = sides["native"].value
    assert native["losses"] == [
        "loss_box_reg",
        "loss_classifier",
        "loss_objectness",
        "loss_rpn_box_reg",
    ]
    assert native["found"] == [["boxes", "labels", "scores"]] * 2
    # The better box of two that overlap, and the box of another class.
    assert native["kept"] == [[1, 2], [1, 2]]
    for name, side in sides.items():
        assert side.value == native, name
    assert_no_more_memory(sides)
