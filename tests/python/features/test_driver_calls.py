"""The driver calls in status()."""

from __future__ import annotations

from tests.conftest import RunSimulated

SHARING = """\
import ferro_alloc

ferro_alloc.install()
import torch

calls = lambda: ferro_alloc.status().devices[0].driver_calls
tensor = torch.empty(1 << 19, device="cuda")  # a page
assert calls()["exported"] == 0 == calls()["imported"], calls()
shared = tensor.untyped_storage()._share_cuda_()
assert calls()["exported"] == 1, calls()
assert "exported 1" in str(ferro_alloc.status())
"""


def test_exports_are_among_the_driver_calls(run_simulated: RunSimulated) -> None:
    run_simulated(SHARING)
