"""NCCL between the simulated cards of one host: values, order, training, failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunProgram, RunSimulated
from tests.programs import Completed
from tests.python.commands import command

pytestmark = pytest.mark.no_extension

Found = list[dict[str, Any]]
TRAIN = """\
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
model = DistributedDataParallel(torch.nn.Linear(4, 4).cuda())
model(torch.ones(2, 4, device="cuda")).sum().backward()
kept = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
gradient = model.module.weight.grad
with open(f"{__file__}.{dist.get_rank()}", "w") as file:
    file.write(str(gradient[0].tolist()))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_collectives_move_real_bytes(ranks: int, run_simulated: RunSimulated) -> None:
    done = run_simulated("sim_ranks.py", str(ranks), "collectives", count=ranks)
    every: Found = json.loads(done.stdout.splitlines()[-1])
    assert len(every) == ranks
    last = ranks - 1
    numbers = list(range(ranks))
    total = sum(numbers)

    def sums(*given: int) -> list[int]:
        return [ranks * number + total for number in given]

    for rank, found in enumerate(every):
        before = (rank - 1) % ranks
        assert found == {
            **{f"sum of torch.{name}": sums(1, 2, 3) for name in ("float32", "float64", "float16")},
            "sum of torch.bfloat16": sums(1, 2, 3),
            "sum of torch.int64": sums(1, 2, 3),
            "MAX": [1 + last, 2 + last],
            "MIN": [1, 2],
            "PRODUCT": [prod(1 + r for r in numbers), prod(2 + r for r in numbers)],
            "AVG": [number / ranks for number in sums(1, 2)],
            "half of each": [number / 2 for number in sums(1, 2)],
            "broadcast": [10 + last],
            "reduced": sums(10) if rank == last else None,
            "gathered": [[r, 10 + r] for r in numbers],
            "gathered into one": numbers,
            "reduced and scattered": sums(rank),
            "all to all": [100 * rank + r for r in numbers],
            "of different sizes": [r for r in numbers for _ in range(rank)],
            "scattered": [10 * rank + last],
            "ring": [before],
            "one after the other": [50 + before],
            "objects": numbers,
            **({"of two": [last]} if rank in (0, last) else {}),
            "large": [1.0, 1],
            "drawn": "drawn",
            "drawn and unknown": "integer",
            "twice by a graph": [ranks * (ranks + total)],
        }


@pytest.mark.parametrize("mode", ["adversarial", pytest.param("clock", marks=pytest.mark.long)])
def test_queued_collectives_keep_the_order_of_their_streams(
    mode: str, run_simulated: RunSimulated
) -> None:
    done = run_simulated("sim_ranks.py", "2", "order", count=2, mode=mode)
    assert json.loads(done.stdout.splitlines()[-1]) == [{"wrong": 0}] * 2


def test_a_rank_that_does_not_take_part_is_an_error(run_simulated: RunSimulated) -> None:
    # Ranks also wait for each other where memory has no contents.
    done = run_simulated("sim_ranks.py", "2", "failures", count=2, backing=False)
    first, last = json.loads(done.stdout.splitlines()[-1])
    assert last is None
    one, two = ("AllReduce of 1 float32 (sum)", "AllReduce of 2 float32 (sum)")
    assert first == {
        "different": f"rank 0 of 2 is in {one} and rank 1 in {two}: all ranks must call the same "
        "operations in the same order",
        "absent": f"rank 0 of 2 waited 1 s in {one} for rank 1, which did not arrive "
        "(FERRO_SIM_NCCL_TIMEOUT sets the seconds)",
        "ended": f"rank 1 has ended, and rank 0 of 2 waits for it in {one}",
    }


def test_ranks_may_share_a_process(run_simulated: RunSimulated) -> None:
    done = run_simulated("sim_one_process.py", count=3)
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "sums": [[6, 12]] * 3,
        "gradients agree": [True] * 4,
        "of threads": [[3, 3, 3]] * 3,
    }


def run_torchrun(
    run_program: RunProgram,
    script: Path,
    *arguments: str,
    options: tuple[str, ...] = (),
    check: bool = True,
) -> Completed:
    torchrun = (
        "import runpy, sys\nsys.argv[0] = 'torchrun'\n"
        "runpy.run_module('torch.distributed.run', run_name='__main__', alter_sys=True)\n"
    )
    simulate = ("-m", "ferro_alloc", "simulate", "--count", "2", *options, str(script), *arguments)
    words = ("--standalone", "--nproc-per-node", "2", *simulate)
    return run_program(torchrun, *words, env={"OMP_NUM_THREADS": "1"}, check=check)


def test_torchrun_simulates_each_rank(run_program: RunProgram, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    result, page = tmp_path / "result-{rank}.json", tmp_path / "page-{rank}.html"
    done = run_torchrun(run_program, script, options=("--json", str(result), "--report", str(page)))
    gradients = [Path(f"{script}.{rank}").read_text() for rank in range(2)]
    assert gradients == ["[2.0, 2.0, 2.0, 2.0]"] * 2
    # Each rank has a context, the libraries, and one GiB.
    assert done.stderr.count("  FITS, with 77.") == 2
    assert done.stderr.count("calls that are not simulated: none") == 2
    for rank in range(2):
        devices = json.loads(Path(str(result).format(rank=rank)).read_text())["devices"]
        assert [bool(device["peak_in_use_bytes"]) for device in devices] == [rank == 0, rank == 1]
        assert "<h1>train.py on " in Path(str(page).format(rank=rank)).read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--json", "result.json"),
            "write result.json: expected a name with {rank}, as in result-",
        ),
        (("--report", "page.html"), "write page.html: expected a name with {rank}, as in page-"),
        (("--compare",), "--compare runs the program several times, and ranks meet only once"),
        (("--what-if", "batch"), "--what-if runs the program several times, and ranks meet only"),
    ],
)
def test_ranks_refuse_what_only_one_process_can(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('runs')")
    ranks = {"RANK": "1", "WORLD_SIZE": "2"}
    done = command("simulate", *options, str(script), "--batch", "4", env=ranks)
    assert done.returncode in (1, 2), done.stderr
    assert (said in done.stderr, done.stdout) == (True, ""), done.stderr
    alone = {"RANK": "0", "WORLD_SIZE": "1"}
    done = command("simulate", "--json", str(tmp_path / "result"), str(script), env=alone)
    assert done.stdout == "runs\n", done.stderr


def test_a_rank_reports_also_if_torchrun_ends_it_meanwhile(tmp_path: Path) -> None:
    """Torchrun sends SIGTERM to the other ranks when one has ended with a status like 13."""
    script, found = tmp_path / "train.py", tmp_path / "result-{rank}"
    script.write_text("print('ends', flush=True)")
    made = tmp_path / "result-1"
    os.mkfifo(made)
    process = subprocess.Popen(
        [sys.executable, "-m", "ferro_alloc", "simulate", "--json", str(found), str(script)],
        env={**os.environ, "RANK": "1", "WORLD_SIZE": "2"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    # Writing the result waits for a reader.
    assert any(line.startswith("simulated ") for line in process.stderr)
    process.send_signal(signal.SIGTERM)
    reader = os.open(made, os.O_RDONLY | os.O_NONBLOCK)
    assert process.wait(60) == 0
    assert json.loads(os.read(reader, 1 << 16))["verdict"] == "fits"
    os.close(reader)
    process.stderr.close()


ENDS = """\
import os, sys, time, torch
import torch.distributed as dist
first, then = sys.argv[1:]
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
x = torch.ones(1024, device="cuda")
dist.all_reduce(x)
if rank == 0:
    if first == "unsure":
        torch.empty(int((torch.randn(2048, 2048, device="cuda") @ x.new_ones(2048, 2)).sum()) + 4)
    elif first == "stop":
        sys.exit(3)
    else:
        try:
            torch.empty(100 << 30, device="cuda")
        except torch.OutOfMemoryError:
            if first == "raise":
                raise
elif then == "work":
    time.sleep(3)
    most = torch.ones(1 << 28, device="cuda")
else:
    dist.all_reduce(x * float((torch.randn(2048, 2048).cuda() @ x.new_ones(2048, 2)).sum()))
"""


def ends_of(run_program: RunProgram, tmp_path: Path, *words: str) -> tuple[Completed, Found]:
    script, found = tmp_path / "train.py", tmp_path / "result-{rank}.json"
    script.write_text(ENDS)
    done = run_torchrun(run_program, script, *words, options=("--json", str(found)), check=False)
    assert done.returncode == 1
    files = [tmp_path / f"result-{rank}.json" for rank in range(2)]
    return done, [json.loads(file.read_text()) for file in files]


@pytest.mark.parametrize(
    ("first", "status"), [("unsure", 13), ("raise", 12), pytest.param("catch", 12)]
)
def test_a_rank_that_works_longer_than_another_one_has_its_whole_report(
    first: str, status: int, run_program: RunProgram, tmp_path: Path
) -> None:
    """Torchrun would end it when the other one exits."""
    done, (one, two) = ends_of(run_program, tmp_path, first, "work")
    assert one["exit_status"] == status
    assert (two["verdict"], two["partial"]) == ("fits", ""), done.stderr
    assert two["devices"][1]["peak_allocated_bytes"] >= 1 << 30
    assert f"exitcode  : {status} " in done.stderr


def test_a_rank_that_waited_for_one_that_failed_says_so(
    run_program: RunProgram, tmp_path: Path
) -> None:
    """Its error is that of the other rank, so it does not come from the value that it read."""
    done, (one, two) = ends_of(run_program, tmp_path, "raise", "wait")
    assert (one["exit_status"], one["ended_ranks"]) == (12, [])
    assert two["ended_ranks"] == [{"rank": 0, "status": 12}]
    assert two["uncomputed"]
    assert (two["ended_by"], two["exit_status"]) == ("", 1)
    said = "(DistBackendError at train.py:24) after rank 0 had ended with status 12 (does not fit)"
    assert said in done.stderr, done.stderr


def test_a_failure_of_the_program_ends_the_ranks_at_once(
    run_program: RunProgram, tmp_path: Path
) -> None:
    done, (_, two) = ends_of(run_program, tmp_path, "stop", "work")
    assert (two["partial"], two["exit_status"]) == ("terminated", 143)
    said = "it was terminated at train.py:21 after rank 0 had ended with status 3, so this report"
    assert said in done.stderr, done.stderr


MASKED = """\
import os, torch
import torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
unknown = torch.empty(4096, 4096, device="cuda") @ torch.empty(4096, 64, device="cuda")
rows = unknown[unknown[:, 0] > 0.5]
dist.all_reduce(torch.ones(4, device="cuda"))
dist.destroy_process_group()
"""


def test_ranks_run_once_also_with_unknown_rows(run_program: RunProgram, tmp_path: Path) -> None:
    """A second run would wait in torchrun's store until a time limit."""
    script = tmp_path / "train.py"
    script.write_text(MASKED)
    done = run_torchrun(run_program, script, check=False)
    assert done.stderr.count("FITS AS FAR AS KNOWN, with") == 2, done.stderr
    line = "To see the range, start torchrun again with --rows all\n"
    assert done.stderr.count(line) == 2
    assert "ended early" not in done.stderr


def test_ranks_make_equal_choices_from_equal_numbers(run_simulated: RunSimulated) -> None:
    done = run_simulated("sim_ranks.py", "2", "routing", count=2)
    first, second = json.loads(done.stdout.splitlines()[-1])
    assert first == second
    # Each step has a forward pass and its recomputation, on numbers of the same values.
    assert first["rows"] == 4 * [first["rows"][0]]
    assert first["gathered"][0] != first["gathered"][1]
