"""What reports leave out: warnings about numbers that decide nothing, and symbols of kernels."""

from __future__ import annotations

import pytest

from ferro_alloc.sim._symbols import short_name
from tests.python.sim.conftest import Simulate
from tests.python.sim.test_sim_rows import UNKNOWN


def test_numbers_that_decide_nothing_are_in_the_report_only(simulate: Simulate) -> None:
    done, _ = simulate(f"{UNKNOWN}\nprint(score.mean().item())\nrange(int(score.sum()))")
    while_running, report = done.stderr.split("\nsimulated ")
    assert while_running.count("\n") == 1
    assert "train.py:6 reads values that the simulated GPU did not compute" in while_running
    assert "assumed as zeros: train.py:5 (once)" in report


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_ZN2at4cuda19_GLOBAL__N__758183f11spin_kernelEl", "at::cuda::spin_kernel"),
        ("_ZN7cutlass6KernelI4GemmEEvNT_6ParamsE", "cutlass::Kernel"),
        ("_Z9histogramPKiPi", "histogram"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("_Zbroken", "_Zbroken"),
        ("", ""),
    ],
)
def test_short_names_of_kernels(symbol: str, name: str) -> None:
    assert short_name(symbol) == name


def test_kernels_have_short_names_in_the_report(simulate: Simulate) -> None:
    done, result = simulate("import torch\ntorch.cuda._sleep(9)")
    said = "kernels that the simulated GPU did not run: at::cuda::spin_kernel (train.py:2)"
    assert said in result["not_simulated"]
    assert said in done.stderr
