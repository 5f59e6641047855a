"""Convolutions whose workspaces may differ from a card's: with `torch.backends.cudnn.benchmark`,
for the simulated cuDNN does not try as many algorithms, and those that no GPU was asked for. And
those without TF32, which are others."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import pytest

from ferro_alloc.fit import _certainty, _runs, _workspaces
from tests.python.sim.conftest import Simulate
from tests.python.sim.test_sim_certainty import run_of

MIB, GIB = 1 << 20, 1 << 30
REMARK = "convolutions ran with torch.backends.cudnn.benchmark: their workspaces are simulated as"
HIGHER = "on an empty card the peak may be several times higher, and the verdict says what"
DERIVED = (
    "the workspaces of some calls of NVIDIA's libraries (cuDNN, cuFFT, cuSPARSE, cuSOLVER) were "
    "derived from similar ones, so on a card"
)
COUNT = "workspaces of NVIDIA's libraries that were derived from similar ones, and not measured: "
MORE = "a card with free memory may reserve more (docs/will-it-fit.md#workspaces-of-nvidias-lib"
HOLDS = "memory is less than 10 % of the peak reserved, so the verdict holds as far as known"

LAYER = """\
import torch
x = torch.randn(4, 64, 64, 64, device="cuda", requires_grad=True)
LAYER
"""
SET = "torch.backends.cudnn.benchmark = True"
CONVOLUTION = "torch.nn.Conv2d(64, 64, 3).cuda()(x).sum().backward()"
WITHIN = f"with torch.backends.cudnn.flags(enabled=True, benchmark=True): {CONVOLUTION}"
RESET = f"{SET}\n{CONVOLUTION}\ntorch.backends.cudnn.benchmark = False"
TRANSPOSED = f"{SET}\ntorch.nn.ConvTranspose2d(64, 64, 3).cuda()(x)"
NO_GRADIENT = f"{SET}\nwith torch.no_grad(): torch.nn.Conv2d(64, 64, 3).cuda().half()(x.half())"
LINEAR = f"{SET}\ntorch.nn.Linear(64, 64).cuda()(x)"
EMPTY = "torch.backends.cudnn.enabled = False"


@pytest.mark.parametrize(
    ("layer", "remarks"),
    [
        (f"{SET}\n{CONVOLUTION}", True),
        (WITHIN, True),
        (RESET, True),
        (TRANSPOSED, True),
        (NO_GRADIENT, True),
        (CONVOLUTION, False),
        (LINEAR, False),
        (f"{SET}\n{EMPTY}\n{CONVOLUTION}", False),
    ],
    ids=["set", "within", "reset", "transposed", "inference", "unset", "linear", "disabled"],
)
@pytest.mark.parametrize("options", [(), ("--no-values",)], ids=["", "no values"])
def test_the_remark_follows_convolutions_with_it(
    simulate: Simulate, layer: str, remarks: bool, options: tuple[str, ...]
) -> None:
    done, result = simulate(LAYER.replace("LAYER", layer), *options)
    assert done.returncode == (13 if options else 0), done.stderr
    assert result["cudnn_benchmark"] is remarks
    assert (REMARK in done.stderr) == remarks
    assert (HIGHER in done.stderr) == remarks
    assert HOLDS not in done.stderr


FILLS = f"""\
{LAYER.replace("LAYER", f"{SET}{chr(10)}{CONVOLUTION}")}
free, _ = torch.cuda.mem_get_info()
reserved = torch.cuda.memory_reserved()
# Leaves a share of the memory that is then reserved.
kept = torch.empty(int((free - SHARE * reserved) / (1 + SHARE)), dtype=torch.uint8, device="cuda")
"""


@pytest.mark.parametrize(("share", "status"), [("0.08", 13), ("0.12", 0)])
def test_little_spare_memory_makes_a_verdict_unsure(
    simulate: Simulate, share: str, status: int
) -> None:
    done, _ = simulate(FILLS.replace("SHARE", share), "--memory", "4g")
    assert done.returncode == status, done.stderr
    assert (f"the spare {HOLDS}" in done.stderr) == bool(status)
    assert ("FITS AS FAR AS KNOWN, with" in done.stderr) == bool(status)


# The first is one of those that were measured on a GPU, the second is not.
@pytest.mark.parametrize(("images", "derived"), [(4, 0), (5, 3)])
@pytest.mark.parametrize(("share", "unsure"), [("0.08", True), ("0.12", False)])
def test_derived_workspaces_make_a_verdict_unsure(
    simulate: Simulate, images: int, derived: int, share: str, unsure: bool
) -> None:
    program = (
        FILLS.replace("SHARE", share)
        .replace(SET, "")
        .replace("Conv2d(64, 64, 3", "Conv2d(64, 64, 3, padding=1")
    )
    done, result = simulate(program.replace("randn(4, ", f"randn({images}, "), "--memory", "4g")
    assert result["derived_workspaces"] == derived
    assert done.returncode == (13 if derived and unsure else 0), done.stderr
    assert (DERIVED in done.stderr) == bool(derived and unsure)
    assert (f"the spare {HOLDS}" in done.stderr) == bool(derived and unsure)


@pytest.mark.parametrize(("images", "derived"), [(4, 0), (5, 3)])
@pytest.mark.parametrize("options", [(), ("--compare",)], ids=["one run", "comparison"])
def test_derived_workspaces_are_counted_beside_a_sure_verdict(
    simulate: Simulate, tmp_path: Path, images: int, derived: int, options: tuple[str, ...]
) -> None:
    program = LAYER.replace("LAYER", CONVOLUTION.replace("64, 3", "64, 3, padding=1"))
    page = tmp_path / "page.html"
    program = program.replace("randn(4, ", f"randn({images}, ")
    done, result = simulate(program, "--report", str(page), *options)
    assert done.returncode == 0, done.stderr
    for run in result["runs"] if options else [result]:
        assert (run["verdict"], run["sure"], run["derived_workspaces"]) == ("fits", True, derived)
    line = f"{COUNT}{derived}; {MORE}"
    remarks = html.unescape(page.read_text()).partition('<div id="remarks">')[2]
    assert remarks.startswith(line if derived else "</div>")
    assert done.stderr.count(line) == bool(derived)
    assert (MORE in done.stderr) == bool(derived)
    assert HOLDS not in done.stderr


def test_an_unsure_verdict_counts_them_in_its_line() -> None:
    result = {**ran_out(GIB - 1), "cudnn_benchmark": False, "derived_workspaces": 7}
    derived, holds = _workspaces.lines_of(result)
    assert DERIVED in derived
    assert f"most of all under native: 7; {MORE}" in derived
    assert f"the missing {HOLDS}" in holds


def test_a_comparison_counts_those_of_the_run_with_most() -> None:
    runs = [{**ran_out(10 * GIB), "derived_workspaces": count} for count in (2, 9, 4)]
    assert _workspaces.most_derived(runs) is runs[1]
    close = {**ran_out(1), "derived_workspaces": 1}
    assert _workspaces.most_derived([*runs, close]) is close


def test_the_largest_value_has_the_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close to the limit, as the answer of a search is, they make it unsure."""

    def run(self: _runs.Child, *words: str, **options: Any) -> dict[str, Any]:
        value = int(self.program[-1])
        found = run_of("fits as far as known" if value <= 5 else "does not fit")
        found |= {"uncomputed": [], "derived_workspaces": 3, "sure": value != 5}
        found["devices"][0] |= {"spare_bytes": 0 if value == 5 else 7 * GIB}
        return found

    monkeypatch.setattr(_runs.Child, "run", run)
    question = _runs.Question("batch", 1, 64)
    answer = _runs.what_if(_runs.Child([], ["train.py", "--batch", "4"]), question)
    text = "\n".join(_runs.answer_of(question, answer))
    assert "the largest --batch that fits as far as known is 5" in text
    assert f"{DERIVED} the peak may be some percent higher" in text
    assert f"the spare {HOLDS}" in text


def test_a_comparison_has_the_remark(simulate: Simulate) -> None:
    done, _ = simulate(FILLS.replace("SHARE", "0.08"), "--memory", "4g", "--compare")
    assert done.returncode == 13, done.stderr
    assert done.stderr.count(REMARK) == 1
    assert f"the spare {HOLDS}" in done.stderr


def ran_out(missing: int, **more: Any) -> dict[str, Any]:
    failure = {"requested_bytes": missing, "device_free_bytes": 0, "reserved_bytes": 10 * GIB}
    return {
        "cudnn_benchmark": True,
        "derived_workspaces": 0,
        "values": True,
        "uncomputed": [],
        "refused": [],
        "out_of_memory": {**failure, **more},
        "devices": [{"spare_bytes": 0, "peak_reserved_bytes": 10 * GIB}],
    }


def test_little_missing_memory_makes_a_verdict_unsure() -> None:
    assert not _certainty.lacks_surely(ran_out(GIB - 1))
    assert f"the missing {HOLDS}" in "\n".join(_workspaces.lines_of(ran_out(GIB - 1)))
    assert _certainty.lacks_surely(ran_out(GIB))
    assert _certainty.lacks_surely({**ran_out(1), "cudnn_benchmark": False})
    limit = {"reserved_bytes": 10 * GIB, "limit_bytes": 10 * GIB}
    assert not _certainty.lacks_surely(ran_out(MIB, **limit))
    # Without the request, as of an error that the allocator did not raise.
    unknown = {**ran_out(1), "out_of_memory": {"count": 1, "error": "out of memory"}}
    assert _certainty.lacks_surely(unknown)


# An H200 requests 42, 42 and 50 MiB of workspaces for it with TF32, and none without.
TF32 = """\
import torch
SETTING
x = torch.randn(8, 32, 128, 112, device="cuda", requires_grad=True)
layer = torch.nn.Conv2d(32, 64, 3, padding=1, bias=False, device="cuda")
with torch.no_grad():
    layer(x)  # the first use
torch.cuda.memory._record_memory_history(context=None)
layer(x).sum().backward()
trace = torch.cuda.memory._snapshot()["device_traces"][0]
tensors = (8 * 64 * 128 * 112 * 4, 8 * 32 * 128 * 112 * 4)
for event in trace:
    if event["action"] == "alloc" and event["size"] > 1 << 20 and event["size"] not in tensors:
        print("workspace", event["size"])
"""


def workspaces_with(simulate: Simulate, *settings: str) -> list[int]:
    done, _ = simulate(TF32.replace("SETTING", "\n".join(settings)), "--gpu", "h200")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return [int(words[1]) for words in lines if words[0] == "workspace"]


def test_workspaces_with_tf32_are_those_of_tensor_cores(simulate: Simulate) -> None:
    found = workspaces_with(simulate)
    assert len(found) == 3
    assert all(40 * MIB < size < 52 * MIB for size in found)
    # The engines without it are no part of a comparison of all.
    assert set(workspaces_with(simulate, SET)) == set(found)


@pytest.mark.parametrize(
    "setting",
    [
        "torch.backends.cudnn.allow_tf32 = False",
        "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
        f"torch.backends.cudnn.allow_tf32 = False\n{SET}",
    ],
    ids=["forbidden", "precision", "benchmark"],
)
def test_workspaces_without_tf32_are_others(simulate: Simulate, setting: str) -> None:
    assert workspaces_with(simulate, setting) == []
