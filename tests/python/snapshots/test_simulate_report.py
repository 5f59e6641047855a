"""The page of `simulate --report` covers the whole run, by the recorded kinds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ferro_alloc.__main__ import main
from ferro_alloc.fit import _runs
from ferro_alloc.fit._report import KIND_NAMES
from tests.programs import Completed
from tests.python.commands import command, fork_run
from tests.python.sim import fit_programs as programs
from tests.python.snapshots.pages import kinds_at_peak, views_of

MIB = 1 << 20


def simulate(folder: Path, program: str, *options: str) -> Completed:
    script = folder / "train.py"
    script.write_text(program)
    return command("simulate", *options, str(script))


@pytest.mark.parametrize(
    "allocator", ["native", pytest.param("expandable", marks=pytest.mark.long), "ferro_alloc"]
)
def test_report_has_the_peak_and_the_kinds_of_the_run(allocator: str, tmp_path: Path) -> None:
    page, found = tmp_path / "memory.html", tmp_path / "result.json"
    options = ("--allocator", allocator, "--report", str(page), "--json", str(found))
    done = simulate(tmp_path, programs.TRAIN, *options)
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith(f"report: {page}\n")
    (view,) = views_of(page)
    (device,) = json.loads(found.read_text())["devices"]
    kinds, own = kinds_at_peak(view), device["kinds"]
    assert sum(kinds.values()) == pytest.approx(device["peak_allocated_bytes"], rel=0.02)
    assert kinds["parameters"] == pytest.approx(own["parameters"], rel=0.01)
    assert kinds["optimizer state"] == pytest.approx(own["optimizer"], rel=0.01)
    assert kinds["activations"] == pytest.approx(own["activations"], rel=0.01)
    # Each block has the same kind as in the verdict.
    assert set(view["kinds"]) == set(KIND_NAMES.values())
    assert {kind for kind, size in kinds.items() if size >= MIB} == {
        KIND_NAMES[kind] for kind, size in own.items() if size >= MIB
    }
    # Blocks of autograd threads have the lines of the thread that waits for them, and their node.
    assert any(frames[:1] == ["<autograd>:1 AddmmBackward0"] for frames in view["frames"])
    named = {line.split("/")[-1] for line in view["lines"]}
    assert {"train.py:6 <module>", "train.py:9 <module>", "train.py:10 <module>"} <= named
    assert view["allocator"].split()[0] == allocator
    assert "simulated NVIDIA H100 80GB HBM3" in page.read_text()


HOLDS_GRADIENTS = """\
import torch
from torch import nn

model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(256, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
"""


def test_gradients_and_libraries_are_kinds_of_the_page(tmp_path: Path) -> None:
    page, found = tmp_path / "memory.html", tmp_path / "result.json"
    done = simulate(tmp_path, HOLDS_GRADIENTS, "--report", str(page), "--json", str(found))
    assert done.returncode == 0, done.stderr
    (view,) = views_of(page)
    kinds = kinds_at_peak(view)
    own = json.loads(found.read_text())["devices"][0]["kinds"]
    assert own["gradients"] == 8 * (1024 * 1024 + 1024) * 4
    assert not any("_recording.py" in line for line in view["lines"])
    for kind in ("gradients", "libraries", "parameters", "optimizer"):
        assert kinds[KIND_NAMES[kind]] == pytest.approx(own[kind], rel=0.01)


def test_three_allocators_are_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, page, found = (tmp_path / name for name in ("train.py", "memory.html", "r.json"))
    script.write_text(HOLDS_GRADIENTS)
    monkeypatch.setattr(_runs, "execute", fork_run)
    words = ["simulate", "--compare", "--report", str(page), "--json", str(found), str(script)]
    assert main(words) == 0
    assert capsys.readouterr().err.endswith(f"report: {page}\n")
    views, runs = views_of(page), json.loads(found.read_text())["runs"]
    assert [view["label"] for view in views] == ["native", "expandable", "ferro_alloc"]
    for view, run in zip(views, runs, strict=True):
        peak = run["devices"][0]["peak_allocated_bytes"]
        assert sum(kinds_at_peak(view).values()) == pytest.approx(peak, rel=0.02)
        assert view["kinds"] == list(KIND_NAMES.values())


def test_report_shows_the_request_that_failed(tmp_path: Path) -> None:
    page = tmp_path / "memory.html"
    options = ("--memory", "2GiB", "--report", str(page))
    done = simulate(tmp_path, programs.RUNS_OUT_IN_FORWARD, *options)
    assert done.returncode == 12
    (view,) = views_of(page)
    assert len(view["failures"]) == 1
    assert kinds_at_peak(view)["parameters"] > 1000 * MIB


@pytest.mark.long
def test_write_failures_are_reported_at_once_or_at_the_end(tmp_path: Path) -> None:
    done = simulate(tmp_path, "import torch\n", "--report", str(tmp_path / "page"))
    assert done.returncode == 0
    assert "no report: the program used no CUDA memory" in done.stderr
    missing = str(tmp_path / "missing" / "page.html")
    done = simulate(tmp_path, "raise SystemExit(5)\n", "--report", missing)
    assert done.returncode == 1
    assert "there is no folder" in done.stderr
    done = simulate(tmp_path, "raise SystemExit(5)\n", "--report", str(tmp_path))
    assert done.returncode == 1
    assert f"cannot be written to {tmp_path}: it is a folder; name a file" in done.stderr
    page = str(tmp_path / "made")
    program = f"import os\nos.mkdir({page!r})\n{programs.TRAIN}"
    done = simulate(tmp_path, program, "--report", page)
    assert done.returncode == 0
    assert "no report: the report cannot be written" in done.stderr
    done = simulate(tmp_path, "1\n", "--what-if", "batch", "--report", "page.html")
    assert done.returncode == 2
    assert "--report describes one run, or those of --compare" in done.stderr
