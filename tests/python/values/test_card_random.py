"""Random numbers on the simulated GPU are those of the card that it has the name of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunSimulated

pytestmark = pytest.mark.no_extension

RECORDED = Path(__file__).with_name("card_random.json")


def calls(run_simulated: RunSimulated, **activate: Any) -> Any:
    return json.loads(run_simulated("sim_random_calls.py", values=True, **activate).stdout)


def test_the_numbers_are_those_of_a_card(run_simulated: RunSimulated) -> None:
    done = run_simulated("sim_card_random.py", str(RECORDED), gpu="h200", values=True)
    found = json.loads(done.stdout)
    assert (found["cases"], found["wrong"]) == (710, [])
    # Sums and logarithms are rounded in another way, so few of many integers may differ.
    assert len(found["unsure"]) == 37
    assert all("multinomial" in case or "geometric_" in case for case in found["unsure"])


@pytest.mark.parametrize("mode", ["eager", "adversarial"])
def test_each_random_operator_is_certain_only_where_a_card_proves_it(
    run_simulated: RunSimulated, mode: str
) -> None:
    done = run_simulated(
        *("sim_random_operators.py", str(RECORDED)), gpu="h200", values=True, mode=mode, seed=3
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found["operators"]) <= {case["operator"] for case in found["cases"]}
    for case in found["cases"]:
        name, expected = case["expression"], case["expected"]
        assert case["operator"].partition(".")[0] in case["called"], name
        # What follows from a card's numbers is certain, so a card has them.
        assert expected != "card" or case["recorded"], name
        for way, learned in case["learned"].items():
            read = set(learned) - {"float"}
            if expected == "drawn":
                assert read == {"drawn"}, (name, way)
            elif expected == "unknown":
                assert read in ({"size"}, {"integer"}, {"size", "integer"}), (name, way)
            else:
                assert learned == [], (name, way)


FAILS = """\
import torch
from ferro_alloc import sim

drawn = {}
for act in (lambda: torch.zeros(3, device="cuda"), drawn.cpu, torch.cuda.synchronize):
    try:
        act()
        print("done")
    except RuntimeError as error:
        print(str(error).splitlines()[0])
print(sum(read.count for read in sim.uncomputed_reads()))
"""
ASSERTION = "CUDA error: device-side assert triggered"
CHANCES = "torch.multinomial(torch.tensor({}, device='cuda'), {})"


@pytest.mark.parametrize(
    ("call", "fails"),
    [
        # What an H200 does, which may fail before the result is read.
        (CHANCES.format([-1.0, -2.0, -3.0], 1), True),
        (CHANCES.format([0.5, -1.0, 0.5], "2, True"), True),
        (CHANCES.format([0.0, 0.0, 0.0], 2), True),
        (CHANCES.format([0.0, 0.0, 0.0], "2, True"), True),
        ("torch.multinomial(torch.full((3,), float('nan'), device='cuda'), 2)", True),
        ("torch.multinomial(torch.full((3,), float('inf'), device='cuda'), 2, True)", True),
        ("torch.bernoulli(torch.full((3,), 2.0, device='cuda'))", True),
        (CHANCES.format([0.0, 1.0, 2.0], "2, True"), False),
        ("torch.bernoulli(torch.ones(3, device='cuda'))", False),
    ],
)
def test_arguments_that_a_card_asserts_to_be_others_end_its_context(
    run_simulated: RunSimulated, call: str, fails: bool
) -> None:
    done = run_simulated(FAILS.format(call), values=True)
    after = ASSERTION if fails else "done"
    assert done.stdout.splitlines() == ["done", after, after, "0"]


@pytest.mark.parametrize(
    "call",
    [
        # Within roundings, after drawn numbers, and of equal chances a card may take others.
        "torch.bernoulli(torch.full((3,), 1.0000001, device='cuda'))",
        "torch.multinomial(torch.poisson(torch.zeros(3, device='cuda')), 1)",
        CHANCES.format([0.0, 1.0, 0.0, 2.0, 0.0], 4),
    ],
)
def test_what_a_card_does_with_such_arguments_may_be_unknown(
    run_simulated: RunSimulated, call: str
) -> None:
    done = run_simulated(FAILS.format(call), values=True)
    assert done.stdout.splitlines() == ["done", "done", "done", "1"]


@pytest.mark.parametrize("mode", ["eager", "adversarial"])
def test_all_ways_to_draw_give_the_same_numbers(run_simulated: RunSimulated, mode: str) -> None:
    found = calls(run_simulated, gpu="h200", mode=mode, seed=3)
    assert found["wrong"] == []
    # Counted among the numbers that an H200 has for these sizes.
    assert (found["mask"], found["rows"]) == (973_163, 270_187)


def test_only_large_tensors_depend_on_the_card(run_simulated: RunSimulated) -> None:
    large, small = (calls(run_simulated, gpu=gpu)["first"] for gpu in ("h200", "rtx-3060"))
    assert large[:2] == small[:2]
    assert large[2][0] == small[2][0]  # the first thread's number
    assert large[2][1:] != small[2][1:]
