"""A latent diffusion model of diffusers, trained and sampled, compared with native."""

from __future__ import annotations

import pytest

from tests.python.client_sides import assert_no_more_memory, run_sides

pytest.importorskip("diffusers", reason="diffusers is not installed: make test-clients")


def test_training_and_sampling() -> None:
    sides = run_sides("client_diffusers.py")
    native = sides["native"].value
    assert native["averaged"] == len(native["trained"]) == 10
    assert native["trained"][0] == [[4, 4, 32, 32], "torch.bfloat16"]
    assert native["saved"] == ["config.json", "diffusion_pytorch_model.safetensors"]
    assert native["sampled"][1] == [[2, 3, 96, 96], [800, 600, 400, 200, 0]]
    for name, side in sides.items():
        assert side.value == native, name
    assert_no_more_memory(sides)
