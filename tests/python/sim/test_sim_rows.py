"""Masks of unknown numbers: what follows from them agrees with their rows, and `simulate` shows the
range between the fewest and the most rows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ferro_alloc.fit import _range
from tests.python.sim.conftest import Result, Simulate

MIB = 1 << 20

# The results of large matrix products are never computed.
UNKNOWN = """\
import torch
weights = torch.randn(1024, 1024, device="cuda")
score = (weights @ weights)[:64]
"""

# Each mask, what zeros make of it, and what it is in a run whose masks are true.
MASKS = {
    "score.sigmoid() > 0.05": (0, 1),
    "score < 2": (1, 1),
    "score >= score.quantile(0.9)": (1, 1),
    "torch.cdist(score, score.repeat(16, 1)) < 1.0": (1, 1),
    "(score * 5).long() > 3": (0, 1),
    "(score * 5).long() >= 0": (1, 1),
    "(score > 0) & (score < 3)": (0, 1),
    "~(score > 0)": (1, 0),
    "score == 0": (1, 1),
    "torch.isin((score * 5).long(), torch.arange(10, device='cuda'))": (1, 1),
    "score.bool()": (0, 1),
    "torch.logical_not(score)": (1, 0),
    "(score.norm(dim=1, keepdim=True) < 3).expand(64, 1024)": (1, 1),
    "(score[:, :512] > 1).repeat(1, 2)": (0, 1),
    "torch.where(score > 1, 7, 3) == 7": (0, 1),
    "(score > 1).float() > 0.5": (0, 1),
}
FALSE_IN_NONE = {"~(score > 0)": 1, "torch.logical_not(score)": 1}
AGREEING = f"""\
{UNKNOWN}
def check(mask):
    rows = mask.sum(1).tolist()
    size, count = mask.numel(), sum(rows)
    assert count in (0, size)
    parts = score[mask].split(rows)
    assert [len(part) for part in parts] == rows
    assert len(score[~mask]) == size - count == int((~mask).sum())
    assert mask.any().item() == bool(count) == bool(mask.all()) == bool(mask.any(1).all())
    assert len(score[mask & (weights[:64] < 9)]) == count == mask.long().sum().clamp(max=size)
    assert int((torch.where(mask, torch.arange(1024, device="cuda"), -1) >= 0).sum()) == count
    assert int(mask.float().sum()) == count == mask.half().sum(1).cpu().sum()
    assert len(torch.arange(64, device="cuda").repeat_interleave(mask.sum(1))) == count
    assert len(mask.nonzero()) == len(mask.long().nonzero()) == len(mask.float().nonzero())
    assert len(mask.nonzero()) == count == torch.count_nonzero(mask) == mask.cumsum(1)[:, -1].sum()
    torch.empty(count, device="cuda")[:] = score[mask]
    part = torch.zeros(64, 1024, dtype=torch.bool, device="cuda")
    part[:, :100] = mask[:, :100]
    assert len(part.nonzero()) == int(part.sum()) == count / 1024 * 100
    large = mask.repeat(80, 1, 1).contiguous()
    assert len(large.nonzero()) == int(large.sum()) == 80 * count
    assert mask.cpu().sum() == count
    if count:
        assert mask.nonzero()[:, 0].max() == 63
    return count // size
truths = [len(score.nonzero()), int((score != 0).sum()), int(score.count_nonzero())]
assert truths == [truths[0]] * 3
assert bool(score.any()) == bool(score.any(1).all()) == bool(truths[0])
assert torch.isfinite(score).all() and not torch.isnan(score).any()
assert not (score != score).any() and bool((score == score).all())
score.sigmoid().requires_grad_().prod(1).sum().backward()
length = score.mean(1).exp().round().long().clamp(min=1)
assert len(score.repeat_interleave(length, 0)) == 64
torch.distributions.Categorical(probs=score.softmax(-1), validate_args=True)
print([check(mask) for mask in ({", ".join(MASKS)})])
"""


@pytest.mark.parametrize(
    ("rows", "mode"),
    [("zeros", "eager"), ("none", "eager"), ("all", "eager"), ("all", "adversarial")],
)
def test_all_that_follows_from_a_mask_agrees_with_its_rows(
    simulate: Simulate, rows: str, mode: str
) -> None:
    expected = {
        "zeros": [of_zeros for of_zeros, _ in MASKS.values()],
        "none": [FALSE_IN_NONE.get(mask, 0) for mask in MASKS],
        "all": [true for _, true in MASKS.values()],
    }
    done, _ = simulate(AGREEING, "--rows", rows, "--mode", mode, "--values")
    assert done.stdout == f"{expected[rows]}\n", done.stderr


PARTLY = """\
import torch
weights = torch.randn(1024, 1024, device="cuda")
few = torch.cat([torch.arange(20.0, device="cuda"), (weights @ weights)[0, :30]]) > 9.5
many = torch.zeros(4096, dtype=torch.bool, device="cuda")
many[:1024] = (weights @ weights)[0] > 3
many[4000:] = True
for mask in (few, many):
    found = mask.nonzero()
    assert len(found) == int(mask.sum()), (len(found), mask.sum())
    print(len(found))
"""


@pytest.mark.parametrize(
    ("rows", "counts"), [("zeros", (10, 96)), ("none", (10, 96)), ("all", (40, 1120))]
)
def test_known_elements_of_masks_stay_known(
    simulate: Simulate, rows: str, counts: tuple[int, int]
) -> None:
    done, _ = simulate(PARTLY, "--rows", rows)
    assert done.stdout == "{}\n{}\n".format(*counts), done.stderr


SPLITS = f"""\
{UNKNOWN}
x = torch.empty(64, 1 << 22, dtype=torch.uint8, device="cuda")
mask = score[:, 0] COMPARED
kept = torch.empty(int(mask.sum()), 1 << 22, dtype=torch.uint8, device="cuda")
kept[:] = x[mask]
parts = score[score COMPARED].split((score COMPARED).sum(1).tolist())
print(len(kept), len(parts), flush=True)
"""


def used(result: Result) -> int:
    return int(result["devices"][0]["peak_allocated_bytes"])


@pytest.mark.parametrize(
    ("compared", "kept", "amount", "key"),
    [("< 2", 64, "many", "few_rows"), (">= 2", 0, "few", "all_rows")],
)
def test_a_program_that_compares_a_masks_rows_with_its_sum(
    simulate: Simulate, compared: str, kept: int, amount: str, key: str
) -> None:
    done, result = simulate(SPLITS.replace("COMPARED", compared))
    assert (done.returncode, done.stdout) == (13, f"{kept} 64\n"), done.stderr
    assert f"train.py:8 (once): the size of a result, with as {amount} rows" in done.stderr
    other = result[key]
    assert (other["verdict"], other["program_status"]) == ("fits as far as known", 0)
    assert "instead_of" not in other
    more, fewer = (result, other) if kept else (other, result)
    assert 500 * MIB < used(more) - used(fewer) < 530 * MIB
    said = "as few" if kept else "as many"
    assert f"  with {said} rows as possible it FITS AS FAR AS KNOWN, with" in done.stderr


ASKS = f"""\
{UNKNOWN}
if (score > 0).any(dim=1).any():
    wide = torch.empty(512, 1 << 20, dtype=torch.uint8, device="cuda")
"""


@pytest.mark.parametrize("condition", ["MASK", "not MASK", "len(score) and MASK"])
def test_a_mask_is_a_condition_whatever_its_branch_does(simulate: Simulate, condition: str) -> None:
    asks = condition.replace("MASK", "(score > 0).any()")
    done, result = simulate(f"{UNKNOWN}\nif {asks}: print('some')")
    assert done.returncode == 13, done.stderr
    assert "computed from zeros; it reached the condition at train.py:5\n" in done.stderr
    assert result["all_rows"]["verdict"] == "fits as far as known"


def test_a_program_that_asks_whether_a_mask_has_rows(simulate: Simulate) -> None:
    done, result = simulate(ASKS)
    assert done.returncode == 13, done.stderr
    assert result["few_rows"] is None
    assert 500 * MIB < used(result["all_rows"]) - used(result) < 530 * MIB
    of_masks = "a number or a boolean, computed from masks that are true; it reached the condition"
    assert f"(once): {of_masks}" in simulate(ASKS, "--rows", "all")[0].stderr


def test_numbers_beside_masks_need_no_other_rows(simulate: Simulate) -> None:
    done, result = simulate(f"{UNKNOWN}\nmask = score > 0\nif score.mean().item() > 3: pass")
    assert done.returncode == 13, done.stderr
    assert (result["all_rows"], result["few_rows"]) == (None, None)


CHECKS = f"""\
{UNKNOWN}
x = torch.empty(64, 1 << 22, dtype=torch.uint8, device="cuda")
assert not (score[:, 0] > 5).any(), "too large"
kept = x[score[:, 0] > 0]
"""


def test_a_check_that_fails_with_all_rows_is_not_the_programs_end(simulate: Simulate) -> None:
    done, result = simulate(CHECKS)
    assert (done.returncode, result["verdict"]) == (13, "fits as far as known"), done.stderr
    most = result["all_rows"]
    assert (most["verdict"], most["rows"]) == ("fits as far as known", "all-alone")
    assert 250 * MIB < used(most) - used(result) < 270 * MIB
    first = most["instead_of"]
    assert (first["rows"], first["ended_at"]) == ("all", "train.py:6")
    assert "  with as many rows as possible it ended early, with " in done.stderr
    assert " in use until then (AssertionError: too large at train.py:6)\n" in done.stderr
    assert "  with as many rows as possible, and masks as of zeros, it FITS AS FAR" in done.stderr


LOOPS = f"""\
{UNKNOWN}
alive = torch.arange(64, device="cuda")
while len(alive):
    alive = alive[score[alive, 0] > 2]
"""


def test_a_loop_that_does_not_end_with_all_rows(simulate: Simulate) -> None:
    done, result = simulate(LOOPS, "--time-limit", "10")
    assert (done.returncode, result["verdict"]) == (13, "fits as far as known"), done.stderr
    assert result["all_rows"]["instead_of"]["partial"] == "time limit"
    assert "(the time limit ended it after 1" in done.stderr
    assert " s at train.py:" in done.stderr


def test_a_program_that_does_not_fit_may_fit_with_few_rows(simulate: Simulate) -> None:
    done, result = simulate(SPLITS.replace("COMPARED", "< 2"), "--memory", "1400m")
    assert (done.returncode, result["verdict"]) == (12, "does not fit"), done.stderr
    assert "DOES NOT FIT AS FAR AS KNOWN" in done.stderr
    assert result["few_rows"]["verdict"] == "fits as far as known"
    assert "  but with as few rows as possible it FITS AS FAR AS KNOWN, with" in done.stderr


# An operator of that name, whose kernel reads the number of rows, as that of torchvision does.
BOXES = """\
import torch
library = torch.library.Library("torchvision", "DEF")
library.define("nms(Tensor boxes, Tensor scores, float threshold) -> Tensor")
def on_host(boxes, scores, threshold):
    kept = []
    for i in scores.argsort(descending=True, stable=True).tolist():
        if all((boxes[i] - boxes[j]).abs().max() != threshold for j in kept):
            kept.append(i)
    return torch.tensor(kept)
def on_card(boxes, scores, threshold):
    count = int(torch.zeros(1, dtype=torch.long, device="cuda"))
    return torch.empty(count, dtype=torch.long, device="cuda")
library.impl("nms", on_host, "CPU")
library.impl("nms", on_card, "CUDA")
weights = torch.randn(1024, 1024, device="cuda")
boxes = (weights @ weights)[:COUNT, :4].repeat(TIMES, 1)
print(len(torch.ops.torchvision.nms(boxes, boxes[:, 0], 0.5)))
"""


@pytest.mark.parametrize(("count", "times"), [(20, 1), (1000, 100)])
@pytest.mark.parametrize("rows", ["zeros", "none", "all"])
def test_boxes_that_nms_keeps(simulate: Simulate, rows: str, count: int, times: int) -> None:
    program = BOXES.replace("COUNT", str(count)).replace("TIMES", str(times))
    done, _ = simulate(program, "--rows", rows)
    expected = 1 if rows == "none" else count * times
    assert done.stdout == f"{expected}\n", done.stderr


def test_a_comparison_has_the_range(simulate: Simulate) -> None:
    done, compared = simulate(SPLITS.replace("COMPARED", "< 2"), "--compare")
    assert (done.returncode, compared["exit_status"]) == (13, 13), done.stderr
    assert all(run["few_rows"]["rows"] == "none" for run in compared["runs"])
    assert "with the fewest rows" in done.stderr
    assert "with all rows" in done.stderr


def result_of(verdict: str, rows: str = "fewest", **more: Any) -> Result:
    read = {"place": "a.py:1", "learned": "size", "count": 1, "reached": "", "rows": rows}
    runs = {"all_rows": None, "few_rows": None}
    return {"verdict": verdict, "partial": "", "seconds": 1.0, "uncomputed": [read], **runs, **more}


def runs_of(first: Result, limit: float | None, *results: Result) -> tuple[Result, list[str]]:
    """The result with the further ones, and the options of their runs."""
    options: list[str] = []
    left = list(results)

    def run(*given: str) -> Result:
        options.append(" ".join(given))
        return left.pop(0)

    _range.add_range(run, first, limit, lambda text: None)
    return first, options


def test_the_time_that_further_runs_may_take() -> None:
    fits = result_of("fits as far as known")
    for seconds, limit, most, least in (
        (1.0, None, 60, 30),
        (20.0, None, 200.0, 40.0),
        (20.0, 15.0, 15.0, 15.0),
    ):
        first = result_of("fits as far as known", "zeros", seconds=seconds)
        _, options = runs_of(first, limit, fits, fits)
        assert options == [
            f"--rows=all --time-limit={most}",
            f"--rows=none --time-limit={least}",
        ]


@pytest.mark.parametrize(
    ("verdict", "rows", "expected"),
    [
        ("fits as far as known", "fewest", ["all"]),
        ("fits as far as known", "most", ["none"]),
        ("fits as far as known", "zeros", ["all", "none"]),
        ("fits as far as known", "", []),
        ("unknown", "fewest", ["all"]),
        ("does not fit", "zeros", ["none"]),
        ("does not fit", "fewest", []),
    ],
)
def test_only_runs_that_differ_are_made(verdict: str, rows: str, expected: list[str]) -> None:
    fits = result_of("fits as far as known")
    _, options = runs_of(result_of(verdict, rows), None, fits, fits)
    assert [each.split()[0].removeprefix("--rows=") for each in options] == expected


def test_what_replaces_a_run_that_ended_early() -> None:
    early = result_of("unknown")
    first, options = runs_of(result_of("fits"), None, early, result_of("does not fit"))
    assert [each.endswith("--rows-alone") for each in options] == [False, True]
    assert first["all_rows"]["verdict"] == "does not fit"
    assert first["all_rows"]["instead_of"] is early
    # A number of rows alone, without rows, changes nothing.
    asks = result_of("fits")
    asks["uncomputed"][0].update(learned="integer", reached="the condition at a.py:1")
    first, options = runs_of(asks, None, early)
    assert (len(options), first["all_rows"]) == (1, early)


@pytest.mark.parametrize(("reason", "status"), [("interrupted", 130), ("terminated", 143)])
@pytest.mark.parametrize("verdict", ["unknown", "does not fit"])
def test_no_run_follows_one_that_a_signal_ended(reason: str, status: int, verdict: str) -> None:
    stopped = result_of(verdict, partial=reason)
    first = result_of("fits as far as known", "zeros", exit_status=13)
    first, options = runs_of(first, None, stopped)
    assert len(options) == 1
    assert (first["all_rows"], first["few_rows"]) == (stopped, None)
    assert (first["partial"], first["exit_status"]) == (reason, status)


def test_a_program_may_set_the_variables_of_ranks(simulate: Simulate) -> None:
    sets = "import os\nos.environ.update(RANK='0', WORLD_SIZE='2')\n"
    done, result = simulate(f"{sets}{UNKNOWN}\nx = score[score > 0]")
    assert done.returncode == 13, done.stderr
    assert result["all_rows"] is not None
    assert "start torchrun again" not in done.stderr


WAITS = f"""\
{UNKNOWN}
import pathlib, time
kept = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
if (score > 0).any():
    pathlib.Path(__file__).with_name("waiting").touch()
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGTERM, "terminated"), (signal.SIGINT, "interrupted")]
)
@pytest.mark.parametrize(
    "options", [[], pytest.param(["--what-if", "batch"], marks=pytest.mark.long)]
)
def test_a_signal_ends_a_further_run(
    tmp_path: Path, number: signal.Signals, reason: str, options: list[str]
) -> None:
    script, result_file = tmp_path / "train.py", tmp_path / "result.json"
    script.write_text(WAITS)
    words = ["simulate", *options, "--json", str(result_file), str(script), "--batch", "4"]
    with subprocess.Popen(
        [sys.executable, "-m", "ferro_alloc", *words],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        while not Path(tmp_path, "waiting").exists() and process.poll() is None:
            time.sleep(0.1)
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
    assert process.returncode == {"terminated": 143, "interrupted": 130}[reason], said
    assert reason in said
    found = json.loads(result_file.read_text())
    result = found["tries"][-1] if options else found
    assert (result["verdict"], result["partial"]) == ("fits as far as known", reason)
    assert used(result["all_rows"]) >= 256 * MIB
    assert (result["few_rows"], result["all_rows"]["partial"]) == (None, reason)


def test_a_further_run_without_a_result_is_named(simulate: Simulate) -> None:
    done, result = simulate(
        f"{UNKNOWN}\nimport ctypes\nif (score > 0).any():\n    ctypes.CDLL(None)._exit(7)\n"
    )
    assert (done.returncode, result["all_rows"]) == (13, None)
    assert "with as many rows as possible the run ended with status 7\n" in done.stderr
