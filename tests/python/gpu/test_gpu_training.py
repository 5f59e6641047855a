"""Training on a GPU: the same bits as under PyTorch's own allocators, in no more memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest

from benchmarks.harness.processes import Child

pytestmark = pytest.mark.gpu

ALLOCATORS = ("native", "expandable", "ferro_alloc")
COMPUTING = ("full_varlen", "lora_recompute", "generate_train", "conv", "moe", "offload")
STEPS = {"full_varlen": 24, "lora_recompute": 16, "generate_train": 6, "conv": 24, "moe": 16}


@cache
def runs(workload: str) -> dict[str, dict[str, Any]]:
    """The workload under each allocator, all three at once: only results and memory matter here."""
    options = ["--workload", workload, "--steps", str(STEPS.get(workload, 8))]
    options += ["--deterministic", "--losses"]

    def run(allocator: str) -> dict[str, Any]:
        arguments = ["--allocator", allocator, *options]
        with Child("benchmarks.harness.measure", arguments) as child:
            child.read()
            return child.read()

    with ThreadPoolExecutor(len(ALLOCATORS)) as pool:
        return dict(zip(ALLOCATORS, pool.map(run, ALLOCATORS), strict=True))


@pytest.mark.parametrize("workload", COMPUTING)
def test_losses_and_weights_are_equal_to_the_last_bit(workload: str) -> None:
    native = runs(workload)["native"]
    losses = [float.fromhex(loss) for loss in native["losses"]]
    # The model works: every loss is a number, and losses differ.
    assert len(losses) == native["steps"]
    assert all(loss == loss and abs(loss) < 1e4 for loss in losses)
    assert len(set(losses)) > 1
    for allocator in ALLOCATORS[1:]:
        assert runs(workload)[allocator]["losses"] == native["losses"], allocator
        assert runs(workload)[allocator]["checksum"] == native["checksum"], allocator


@pytest.mark.parametrize("workload", COMPUTING)
def test_as_much_is_allocated_and_hardly_more_reserved_than_expandable(workload: str) -> None:
    expandable, ferro = (runs(workload)[name] for name in ALLOCATORS[1:])
    # The same tensors, each rounded to 512 bytes.
    assert ferro["peak_allocated"] == pytest.approx(expandable["peak_allocated"], rel=1e-3)
    assert ferro["peak_allocated"] > 1e8
    assert ferro["peak_reserved"] <= 1.02 * expandable["peak_reserved"]
