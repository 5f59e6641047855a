"""The bytes that a request takes, without a device and before CUDA is initialised."""

from __future__ import annotations

import json

import pytest

from ferro_alloc import Config, FerroError, sizes
from tests.conftest import RunProgram

MIB = 1 << 20

ASK = """
import json
import torch
from ferro_alloc import Config, sizes

asked = (0, 1, 512, 513, 5000, 1 << 20, (1 << 20) + 1, 10 << 20, 30 << 20)
segments = Config(layout="segments")
found = [
    [sizes.round_size(size) for size in asked],
    [sizes.allocation_size(size) >> 20 for size in asked],
    [sizes.allocation_size(size, segments) >> 20 for size in asked],
    sizes.allocation_size(1, Config(page_size_mb=8)) >> 20,
    torch.cuda.is_initialized(),
]
print(json.dumps(found))
"""
FOUND = [
    [512, 512, 512, 1024, 5120, MIB, MIB + 512, 10 * MIB, 30 * MIB],
    [2, 2, 2, 2, 2, 2, 2, 10, 30],
    [2, 2, 2, 2, 2, 2, 20, 10, 30],
    8,
    False,
]


@pytest.mark.parametrize("devices", ["", pytest.param("0", marks=pytest.mark.long)])
def test_sizes_need_no_device(run_program: RunProgram, devices: str) -> None:
    done = run_program(ASK, env={"CUDA_VISIBLE_DEVICES": devices})
    assert json.loads(done.stdout) == FOUND


def test_they_follow_the_settings(run_program: RunProgram) -> None:
    settings = {
        "PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:4,large_segment_size_mb:40",
        "FERRO_ALLOC_CONF": "layout:segments",
    }
    text = (
        "from ferro_alloc import sizes\n"
        "print(sizes.round_size(4_500_000) >> 20, sizes.allocation_size(5 << 20) >> 20)\n"
    )
    assert run_program(text, env=settings).stdout.split() == ["5", "40"]


def test_constants_are_pytorchs() -> None:
    assert (sizes.MIN_BLOCK_SIZE, sizes.SMALL_SIZE) == (512, MIB)
    assert (sizes.SMALL_BUFFER, sizes.MIN_LARGE_ALLOC) == (2 * MIB, 10 * MIB)
    assert (sizes.LARGE_BUFFER, sizes.ROUND_LARGE) == (20 * MIB, 2 * MIB)
    segments = Config(layout="segments")
    for size, expected in (
        (sizes.SMALL_SIZE, sizes.SMALL_BUFFER),
        (sizes.SMALL_SIZE + 1, sizes.LARGE_BUFFER),
        (sizes.MIN_LARGE_ALLOC - 1, sizes.LARGE_BUFFER),
        (sizes.MIN_LARGE_ALLOC + 1, sizes.MIN_LARGE_ALLOC + sizes.ROUND_LARGE),
    ):
        assert sizes.allocation_size(size, segments) == expected


@pytest.mark.parametrize("wrong", [-1, 1 << 60, True, 1.5, "1", None])
def test_an_invalid_size_is_refused(wrong: object) -> None:
    for call in (sizes.round_size, sizes.allocation_size):
        with pytest.raises(FerroError, match="expected a number of bytes from 0"):
            call(wrong)  # type: ignore[arg-type]
