"""NCCL between the simulated cards of one host: values, order, training, failures."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunProgram, RunSimulated

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


def test_torchrun_simulates_each_rank(run_program: RunProgram, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    torchrun = (
        "import runpy, sys\nsys.argv[0] = 'torchrun'\n"
        "runpy.run_module('torch.distributed.run', run_name='__main__', alter_sys=True)\n"
    )
    simulate = ("-m", "ferro_alloc", "simulate", "--count", "2", str(script))
    words = ("--standalone", "--nproc-per-node", "2", *simulate)
    done = run_program(torchrun, *words, env={"OMP_NUM_THREADS": "1"})
    gradients = [Path(f"{script}.{rank}").read_text() for rank in range(2)]
    assert gradients == ["[2.0, 2.0, 2.0, 2.0]"] * 2
    # Each rank has a context, the libraries, and one GiB.
    assert done.stderr.count("  FITS, with 77.") == 2
    assert done.stderr.count("calls that are not simulated: none") == 2


def test_ranks_make_equal_choices_from_equal_numbers(run_simulated: RunSimulated) -> None:
    done = run_simulated("sim_ranks.py", "2", "routing", count=2)
    first, second = json.loads(done.stdout.splitlines()[-1])
    assert first == second
    # Each step has a forward pass and its recomputation, on numbers of the same values.
    assert first["rows"] == 4 * [first["rows"][0]]
    assert first["gathered"][0] != first["gathered"][1]
