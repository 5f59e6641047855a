"""Values on the simulated GPU: computed values, missing values, and the warnings about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunProgram, RunSimulated
from tests.python.sim.test_sim_command import SIMULATE

pytestmark = pytest.mark.no_extension

LATE = {"mode": "adversarial", "seed": 3, "values": True}
MODES = pytest.mark.parametrize(
    "activate", [{}, LATE, {"mode": "clock", "values": True}], ids=["eager", "adversarial", "clock"]
)

LIBRARIES = """\
import torch
diagonal = torch.eye(4, device="cuda")
blocks = diagonal.to_sparse_bsr((2, 2))
for function in (
    lambda: blocks @ diagonal[0],
    lambda: torch.triangular_solve(diagonal, blocks),
):
    try:
        function()
    except RuntimeError:
        pass
large = torch.randn(1000, 1000, device="cuda")
(large @ large).sum().item()
"""

NESTED = """\
import torch
from torch import nn
torch.manual_seed(0)
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
encoder = encoder.cuda()
padded = torch.arange(6).expand(4, 6) >= torch.tensor([[6], [4], [3], [1]])
with torch.no_grad():
    found = encoder(torch.randn(4, 6, 16, device="cuda"), src_key_padding_mask=padded.cuda())
print(tuple(found.shape))
"""

REPLACED = """\
import torch
calls = 0
def multiply(one, other, alpha=1):
    global calls
    calls += 1
    return one.mul(10).mul(other)
library = torch.library.Library("aten", "IMPL")
library.impl("add.Tensor", multiply, "CUDA")
x = torch.ones(2, device="cuda")
print((x + torch.full((2,), 1.2, device="cuda"))[0].item(), calls)
"""

CAPTURED = """\
import json, torch
from ferro_alloc import sim
source = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    copied = source.clone()
    added = copied + 1
before = sim.counters()["cuGraphLaunch"].calls if "cuGraphLaunch" in sim.counters() else 0
source.copy_(torch.arange(4.0))
graph.replay()
found = copied.tolist()
known = len(sim.uncomputed_reads())
added.tolist()
print(json.dumps({"copied": found, "known": known, "warned": len(sim.uncomputed_reads())}))
"""

LATE_OPERATORS = """\
import json, torch
from ferro_alloc import sim
torch.ones(1, device="cuda")
library = torch.library.Library("late", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: torch.add(x, x), "CUDA")
result = torch.ops.late.twice(torch.ones(3, device="cuda"))
result.tolist()
print(json.dumps(len(sim.uncomputed_reads())))
"""

TRAINING = """\
import json, torch
from benchmarks.models.workloads import WORKLOADS
WORKLOADS["full_varlen"].run(lambda step, loss: None, **WORKLOADS["full_varlen"].smoke)
statistics = torch.cuda.memory_stats()
print(json.dumps({
    key: statistics[key]
    for key in ("allocated_bytes.all.peak", "reserved_bytes.all.peak", "allocation.all.allocated",
                "allocated_bytes.all.allocated", "requested_bytes.all.allocated")
}))
"""


def last_line(run: RunSimulated, program: str, **activate: Any) -> Any:
    return json.loads(run(program, **activate).stdout.splitlines()[-1])


@MODES
def test_small_results_are_those_of_the_host(
    run_simulated: RunSimulated, activate: dict[str, Any]
) -> None:
    found = last_line(run_simulated, "sim_values.py", **activate)
    assert found["cases"] == 40
    assert found["wrong"] == []
    assert found["warned_before"] == 0
    random = found["random"]
    assert random["repeats"]
    assert random["differs"]
    assert random["permutation"]
    assert random["host"]
    assert 0.3 < random["mean"] < 0.7
    assert 400 < random["kept"] < 600


def test_conjugated_views_of_known_data_are_known(run_simulated: RunSimulated) -> None:
    assert last_line(run_simulated, "sim_conjugates.py") == {"wrong": [], "unknown": []}


def test_operators_that_the_host_refuses_or_cannot_survive_have_the_values_of_a_card(
    run_simulated: RunSimulated,
) -> None:
    found = last_line(run_simulated, "sim_host_differences.py")
    assert found == {"wrong": [], "unknown": [], "by_zero": 1, "tried": True}


@MODES
def test_what_is_known_survives_the_host_until_the_program_writes_there(
    run_simulated: RunSimulated, activate: dict[str, Any]
) -> None:
    found = last_line(run_simulated, "sim_host_copies.py", **activate)
    assert set(found) == {"enable_grad", "inference_mode"}
    known = {"filled", "added", "a row", "by numpy", "resized"}
    for cases in found.values():
        assert cases.pop("gaps") == "0000"
        assert cases.pop("big") == "1100"
        assert {name for name, unknown in cases.items() if unknown == "000000"} == known
        assert {cases[name] for name in set(cases) - known} == {"000110"}


@pytest.mark.parametrize("rows", ["all", "none", "all-alone", "none-alone", ""])
def test_masks_of_all_operators_count_alike(run_simulated: RunSimulated, rows: str) -> None:
    env = {"FERRO_ALLOC_SIM_ROWS": rows} if rows else {}
    done = run_simulated("sim_masks.py", env=env, start_anew=True, values=True)
    found = json.loads(done.stdout.splitlines()[-1])
    # Without zeros, the gradients of products take the common way.
    assert {name for name, (known, there) in found["gradients"].items() if known != there} == set()
    # Where masks agree with each other, the negation of a true one is false.
    negated = {"logical_not", "not"} if rows in ("all", "none") else set()
    if rows == "all":
        negated.add("xor")
    if rows:
        most = 1000 if rows.startswith("all") else 0
        for name, counts in found["rows"].items():
            assert counts == [1000 - most if name in negated else most] * 3, name
    # Operators on two masks have the limit of operators on one.
    assert found["long"] == (0 if rows in ("all", "none-alone") else 3_000_000)
    if rows.startswith("all"):
        assert found["distinct"] == {
            "mask": 2, "long mask": 2, "one": 1, "octets": 256, "numbers": 1000
        }  # fmt: skip
        assert found["slices"] == {"rows of a mask": 4, "rows of numbers": 50}
    else:
        assert set(found["distinct"].values()) == set(found["slices"].values()) == {1}


@MODES
def test_frequent_operators_have_kernels_without_boxed_arguments(
    run_simulated: RunSimulated, activate: dict[str, Any]
) -> None:
    found = last_line(run_simulated, "sim_direct_kernels.py", **activate)
    assert found.pop("names") > 50
    assert found == {"wrong": [], "unknown": [], "boxed": []}


def test_operators_may_return_nested_tensors(run_simulated: RunSimulated) -> None:
    assert run_simulated(NESTED).stdout == "(4, 6, 16)\n"


def test_a_kernel_that_the_program_registers_is_called_in_their_place(
    run_simulated: RunSimulated,
) -> None:
    assert run_simulated(REPLACED).stdout.split() == ["12.0", "1"]


def test_known_tensors_stay_known_in_lists_with_unknown_ones(run_simulated: RunSimulated) -> None:
    found = last_line(run_simulated, "sim_lists.py")
    assert found == {"wrong": [], "unsure": [], "silent": []}


@MODES
def test_what_follows_from_known_elements_is_known_beside_unknown_ones(
    run_simulated: RunSimulated, activate: dict[str, Any]
) -> None:
    found = last_line(run_simulated, "sim_partly_known.py", **activate)
    assert found == {"wrong": [], "lost": [], "silent": [], "cases": 47}


@pytest.mark.parametrize(
    ("activate", "seed"),
    [
        ({}, 1),
        (LATE, 2),
        *(pytest.param({}, seed, marks=pytest.mark.long) for seed in range(3, 9)),
        *(pytest.param(LATE, seed, marks=pytest.mark.long) for seed in range(9, 12)),
    ],
)
def test_random_programs_know_what_follows_from_known_elements(
    run_simulated: RunSimulated, activate: dict[str, Any], seed: int
) -> None:
    done = run_simulated("sim_random_parts.py", str(seed), "300", **activate)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"wrong": [], "silent": [], "lost": [], "left": [0, 0, 0]}


# Writes to all places of what `empty` returned, as inverses of permutations do, and to all but one.
PLACES = """\
import json, torch
from ferro_alloc import sim
count = 100_000
order = torch.randperm(count).cuda()
places = torch.arange(count, device="cuda")
large = torch.randn(1000, 1000, device="cuda") @ torch.randn(1000, 1000, device="cuda")
unknown = large.view(-1)[:count].long()
all_but_one = order.clamp(max=count - 2)
def empty(*more):
    return torch.empty(count, *more, dtype=torch.int64, device="cuda")
def put(indices, values, out):
    out[indices] = values
    return out
pairs = torch.stack([places, places + 1], 1)
made = {
    "put": put(order, places, empty()),
    "rows": put(order, pairs, empty(2))[:, 0],
    "copied": empty(2).index_copy_(0, order, pairs)[:, 0],
    "scattered": empty().scatter_(0, order, places),
    "numbers": put(order, places.double(), empty().double()),
    "drawn": put(order, large[0].argmax().expand(count), empty()),
    "all but one": put(all_but_one, places, empty()),
    "unknown values": put(order, unknown, empty()),
    "unknown places": put(unknown.clamp(0, count - 1), places, empty()),
    "added": empty().index_put_((order,), places, accumulate=True),
}
found = {}
for name, numbers in made.items():
    torch.cuda.synchronize()
    before = sum(read.count for read in sim.uncomputed_reads())
    rows = len(numbers[numbers % 3 == 0])
    is_read = sum(read.count for read in sim.uncomputed_reads()) != before
    found[name] = [rows == -(-count // 3), is_read]
print(json.dumps(found))
"""


@MODES
def test_writes_to_all_places_of_unset_memory_leave_known_numbers(
    run_simulated: RunSimulated, activate: dict[str, Any]
) -> None:
    found = last_line(run_simulated, PLACES, **activate)
    known = ["put", "rows", "copied", "scattered", "numbers"]
    assert {name: found[name] for name in known} == {name: [True, False] for name in known}
    others = ["drawn", "all but one", "unknown values", "unknown places", "added"]
    assert [name for name in others if not found[name][1]] == []


# What returns from the host is as sure as before, until the program overwrites it there.
THROUGH_THE_HOST = """\
import json, torch
from ferro_alloc import sim
def reads():
    return sum(read.count for read in sim.uncomputed_reads())
def sure(tensor):
    torch.cuda.synchronize()
    before = reads()
    return [(tensor[i].item(), reads() == before)[1] or (before := reads(), False)[1]
            for i in range(len(tensor))]
def partly(dtype=torch.float):
    numbers = torch.arange(6, dtype=dtype, device="cuda")
    numbers[2:4] = large[0, :2].to(dtype)
    return numbers
large = torch.randn(1000, 1000, device="cuda") @ torch.randn(1000, 1000, device="cuda")
pinned = torch.zeros(12, pin_memory=True)
pinned[:6].copy_(partly(), non_blocking=True)
pinned[6:].copy_(large[0, :6], non_blocking=True)
torch.cuda.synchronize()
found = [sure(partly().cpu().cuda()), sure(pinned.to("cuda", non_blocking=True)[3:9])]
pinned[8:10].copy_(torch.ones(2, device="cuda"))
found.append(sure(pinned.cuda()[6:]))
found.append(sure(partly(torch.int).cpu().long().cuda()))
found.append(sure(partly().to("cpu", torch.double).to("cuda", torch.int)))
found.append(sure(torch.stack([partly(), partly()]).cpu().t().to("cuda", torch.double)[:, 0]))
found.append(sure(partly().cpu()[1:3].cuda()))
pinned[0] = 1
pinned.add_(1)
found.append(sure(pinned.cuda()[:6]))
again = large[0, :6].cpu()
again.copy_(torch.arange(6.0)).mul_(2)
found.append(sure(again.cuda()))
best = large.argmax(1)
same = [torch.equal(large.to("cpu", copy=True).cuda().argmax(1), best),
        torch.equal(large[:1].cpu().cuda().argmax(1), best[:1]),
        torch.equal(large.cpu()[5:9].cuda().argmax(1), best[5:9])]
hosts = [large[0].cpu() for _ in range(2000)]
del hosts
print(json.dumps([found, same]))
"""


@MODES
def test_what_returns_from_the_host_is_as_sure_as_before(
    run_simulated: RunSimulated, activate: dict[str, Any]
) -> None:
    found, same = last_line(run_simulated, THROUGH_THE_HOST, **activate)
    assert found == [
        [True, True, False, False, True, True],
        [False, True, True, False, False, False],
        [False, False, True, True, False, False],
        [True] * 6,  # the host computed other integers
        [True, True, False, False, True, True],  # converted
        [True, True, False, False, True, True],
        [True, False],
        [True] * 6,
        [True] * 6,
    ]
    assert same == [True] * 3


TWO_CARDS = """\
import json, torch
from ferro_alloc import sim
first, second = ("cuda:0", "cuda:1")
there = [torch.full((3,), 7.0, device=device) for device in (first, second)]
torch._foreach_copy_(there, [torch.ones(3, device=device) for device in (second, first)])
numbers = torch.arange(6, device=second).view(2, 3)
turned = torch.full((3, 2), 7, device=first)
turned.copy_(numbers.t())
gaps = torch.full((2, 6), 7, device=first)
gaps[:, ::2].copy_(numbers)
rows = torch.full((2, 2), 7.0, device=first)
rows.copy_(numbers[0, 1:])
numbers.zero_()
found = [each.tolist() for each in (*there, turned, gaps, rows, rows.to(second, torch.int64))]
before = len(sim.uncomputed_reads())
large = torch.randn(1000, 1000, device=second) @ torch.randn(1000, 1000, device=second)
rows.copy_(large[:2, :2].t())
rows.tolist()
print(json.dumps([found, before, len(sim.uncomputed_reads())]))
"""


@MODES
def test_copies_between_cards_have_values(
    run_simulated: RunSimulated, activate: dict[str, Any]
) -> None:
    found, before, after = last_line(run_simulated, TWO_CARDS, count=2, **activate)
    assert found[:2] == [[1.0] * 3] * 2
    assert found[2:4] == [[[0, 3], [1, 4], [2, 5]], [[0, 7, 1, 7, 2, 7], [3, 7, 4, 7, 5, 7]]]
    assert found[4:] == [[[1, 2]] * 2] * 2
    assert (before, after) == (0, 1)


UNSET = """\
import json, torch
from ferro_alloc import sim
def reads():
    return sum(read.count for read in sim.uncomputed_reads())
def is_known(tensor):
    before = reads()
    tensor.cpu()
    return reads() == before
def grown(kind):
    old = torch.full((1000,), 7, device="cuda")
    del old
    tensor = torch.ones(3, dtype=torch.long, device="cuda")
    if kind == "resized":
        return tensor.resize_(1000)
    if kind == "storage":
        tensor.untyped_storage().resize_(8000)
    elif kind == "emptied":
        tensor.untyped_storage().resize_(0)
        tensor.untyped_storage().resize_(8000)
    elif kind == "made":
        return tensor.set_(torch.UntypedStorage(8000, device="cuda"), 0, (1000,))
    return tensor.set_(tensor.untyped_storage(), 0, (1000,))
kinds = ("resized", "storage", "emptied", "made")
found = {kind: (is_known(grown(kind)[:3]), is_known(grown(kind)[3:])) for kind in kinds}
found["elements"] = torch.UntypedStorage([1, 2, 3], device="cuda").tolist()
filled = torch.UntypedStorage(4, device="cuda").fill_(3)
torch.use_deterministic_algorithms(True)
found["filled"] = torch.ones(1, device="cuda").resize_(2)[1:].tolist()
found["filled"] += torch.empty(2, dtype=torch.uint8, device="cuda").tolist() + filled.tolist()
print(json.dumps([found, reads()]))
"""


def test_memory_that_storages_get_is_unknown(run_simulated: RunSimulated) -> None:
    found, reads = last_line(run_simulated, UNSET)
    assert found.pop("elements") == [1, 2, 3]
    assert str(found.pop("filled")) == "[nan, 255, 255, 3, 3, 3, 3]"
    kept, lost = [True, False], [False, False]
    assert found == {"resized": kept, "storage": kept, "emptied": lost, "made": lost}
    assert reads == 6


def test_uncomputed_large_values_warn_once_for_each_place(run_simulated: RunSimulated) -> None:
    done = run_simulated("sim_values.py")
    found = json.loads(done.stdout.splitlines()[-1])
    unknown = found["unknown"]
    assert unknown["sum"] == 0
    # The results come from zeros that stand for uncomputed values, which still causes a warning.
    assert unknown["copied"] == 16
    assert unknown["not_tried"] == 0
    assert len(unknown["argmax"]) == 1000
    assert all(0 <= index < 1000 for index in unknown["argmax"])
    assert len(set(unknown["argmax"])) > 100
    assert all(len(set(row)) == 4 for row in unknown["topk"])
    places = found["places"]
    assert len(places) == 5
    assert all(place.startswith("sim_values.py:") for place, _, _ in places)
    assert all(count == 1 for _, _, count in places)
    assert done.stderr.count("reads values that the simulated GPU did not compute") == 3
    assert (
        done.stderr.count("reads values that follow from choices or numbers that the simulated GPU")
        == 2
    )


@pytest.mark.parametrize(
    "activate", [{}, pytest.param(LATE, marks=pytest.mark.long)], ids=["eager", "adversarial"]
)
def test_programs_that_decide_by_values_end_as_on_a_card(
    run_simulated: RunSimulated, activate: dict[str, Any]
) -> None:
    outcomes = last_line(run_simulated, "sim_decisions.py", **activate)["outcomes"]
    assert outcomes["generation_of_a_small_model"] == {"same": True, "warned": 0}
    assert outcomes["generation_of_a_large_model"] == {"lengths": [23, 23], "valid": True}
    assert outcomes["suppression_of_boxes"]["same"]
    routing = outcomes["routing_of_experts"]
    assert [sum(routing["small"]), sum(routing["large"])] == [2 * 64, 2 * 2048]
    # The large router is not computed; still no expert gets too few or too many tokens.
    assert max(routing["large"]) < 2 * min(routing["large"])
    assert outcomes["loss_scaling"] == {
        "scales": [4.0, 8.0, 4.0, 4.0, 8.0],
        "moved": [True, True, False, True, True],
    }
    assert outcomes["checks_of_arguments"] == {"refused": True, "warned": 0}
    loops = outcomes["loops_that_converge"]
    assert loops["root"] == pytest.approx(2**0.5, abs=1e-6)
    assert loops["rounds"] == 0


def test_allocations_are_those_without_values(run_simulated: RunSimulated) -> None:
    assert last_line(run_simulated, TRAINING, values=True) == last_line(
        run_simulated, TRAINING, values=False
    )


def test_a_graph_moves_bytes_and_computes_nothing(run_simulated: RunSimulated) -> None:
    assert last_line(run_simulated, CAPTURED) == {
        "copied": [0.0, 1.0, 2.0, 3.0],
        "known": 0,
        "warned": 1,
    }


def test_operators_that_come_later_are_seen(run_simulated: RunSimulated) -> None:
    # The effect of an operator of another library is unknown.
    assert last_line(run_simulated, LATE_OPERATORS) == 1


def test_the_command_ends_with_the_missing_parts(run_program: RunProgram, tmp_path: Path) -> None:
    script = tmp_path / "libraries.py"
    script.write_text(LIBRARIES)
    done = run_program(SIMULATE, "simulate", str(script), check=False)
    # The program catches the errors.
    assert done.returncode == 13, done.stderr
    lines = done.stderr.splitlines()
    assert lines[-1] == (
        "  calls that are not simulated: cuSPARSE in aten::addmv.out, aten::triangular_solve.X "
        "(do it on the CPU)"
    )
    assert lines[-2] == (
        "  numbers that seem to decide nothing were not computed, but assumed as zeros: "
        "libraries.py:13 (once)"
    )


def test_values_need_memory_that_keeps_them(run_program: RunProgram) -> None:
    program = "from ferro_alloc import sim\nsim.activate(backing=False, values=True)\n"
    assert "leave `backing` on" in run_program(program, check=False).stderr
