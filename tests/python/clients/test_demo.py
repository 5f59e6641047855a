"""The demo: it runs here, its figures are right, and it notices a wrong bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.demo.__main__ import SIMULATED_NOTE, differences
from benchmarks.demo.child import ALLOCATORS, Result, lengths
from tests.conftest import RunProgram
from tests.programs import ROOT
from tools.gpu import gpu_count

RUN = "import runpy\nrunpy.run_module('benchmarks.demo', run_name='__main__', alter_sys=True)\n"


def test_lengths_vary_and_repeat() -> None:
    shapes = list(lengths(200, 2048))
    assert shapes == list(lengths(200, 2048))
    assert len(set(shapes)) > 100
    assert all(1 <= batch <= 16 and 64 <= length <= 2048 for batch, length in shapes)


def result(allocator: str, **values: object) -> Result:
    made = Result(allocator, losses=["0x1.0p+3", "0x1.8p+2"], graph_loss="0x1p0", compiled_sum="1")
    return replace(made, **values)  # type: ignore[arg-type]


def test_equal_losses_are_equal() -> None:
    assert differences([result("native"), result("ferro_alloc")]) == []


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"losses": ["0x1.0p+3", "0x1.8000000000001p+2"]}, "the loss of step 1 is"),
        ({"graph_loss": "0x1p1"}, "the loss of the replayed graph differs"),
        ({"compiled_sum": "2"}, "the result of the compiled module differs"),
    ],
)
def test_one_wrong_bit_is_found(changed: dict[str, object], named: str) -> None:
    (found,) = differences([result("native"), result("ferro_alloc", **changed)])
    assert found.startswith(f"ferro_alloc: {named}")


@pytest.mark.long
@pytest.mark.skipif(gpu_count() > 0, reason="this machine has an NVIDIA GPU")
def test_demo_on_the_simulated_gpu(run_program: RunProgram, tmp_path: Path) -> None:
    picture = tmp_path / "demo.png"
    done = run_program(RUN, "--steps", "12", "--picture", str(picture))
    lines = done.stdout.strip().splitlines()
    assert (lines[0], lines[-1]) == (SIMULATED_NOTE, SIMULATED_NOTE)
    check(picture, steps=12)


@pytest.mark.gpu
def test_demo_on_a_gpu(run_program: RunProgram, tmp_path: Path) -> None:
    picture = tmp_path / "demo.png"
    done = run_program(RUN, "--steps", "20", "--picture", str(picture))
    assert done.stdout.strip().splitlines()[-1].endswith("bitwise equal")
    check(picture, steps=20)


def check(picture: Path, steps: int) -> None:
    assert picture.read_bytes().startswith(b"\x89PNG")
    results = json.loads((ROOT / "demo-out" / "results.json").read_text())
    assert [r["allocator"] for r in results] == list(ALLOCATORS)
    for one in results:
        assert one["parameters"] > 100e6
        lower, upper = one["step_quartiles"]
        assert 0 < lower <= one["step_seconds"] <= upper
        assert len(one["losses"]) == len(one["step_peak_allocated"]) == steps
        # Weights, gradients and both moments of AdamW are all in single precision.
        assert one["peak_allocated"] > 4 * 4 * one["parameters"]
        assert one["peak_reserved"] >= one["peak_allocated"]
        assert one["device_used"] >= one["step_peak_reserved"][-1]
    ratio = {r["allocator"]: r["peak_reserved"] / r["peak_allocated"] for r in results}
    assert ratio["ferro_alloc"] < ratio["expandable"] < ratio["native"]
    assert ratio["ferro_alloc"] < 1.02
