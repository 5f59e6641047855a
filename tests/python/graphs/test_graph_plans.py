"""Plans compared with what captures then take, on the simulated GPU; and the arithmetic of
plans."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from ferro_alloc.graphs import Plan, PlannedCapture, PlannedSet
from ferro_alloc.graphs._plan import reserved_without_gaps
from tests.conftest import RunSimulated
from tests.python.torch_programs import Result, checks_of, simulated

MIB = 1 << 20

EXPECTED: dict[str, Any] = {
    "one_graph": [True] * 4,
    "a_set_of_large_steps": [True] * 4,
    "a_set_of_steps_with_small_results": [True] * 4,
    "a_set_of_tiny_steps": [True] * 4,
    "a_set_of_results_alone": [True] * 4,
    "a_set_from_small_to_large": [True] * 4,
    "a_plan_leaves_nothing": [[True] * 7, 0, 8 * MIB, True],
    "errors_of_the_callable_go_on": [["KeyError", "KeyError", "KeyError", True], True],
    "results_and_state_are_told_apart": [[6, 6, 3], 6],
    "what_the_driver_takes_is_counted": [[4, 4], [8, 8, 8], True],
    "without_the_memory_it_is_estimated": [
        [True, False, False, False],
        True,
        [True] * 4,
        "OutOfMemoryError",
        0,
    ],
    "graphs_that_exist": [True, [True, True, [True, False], True], "FerroError", 0],
    "a_graphed_callable_is_a_graph": [1, 1, ["separate", "exclusive"]],
    "arguments_have_names": [
        ["8", "[8, 3], x", "()", "()"],
        ["separate pools", "one pool", "separate pools, exclusive"],
    ],
    "what_cannot_be_planned_is_refused": [["FerroError"], 12, "FerroError", True],
    "a_plan_needs_ferro_alloc": ["FerroError", True],
}


@cache
def plans() -> Result:
    return simulated("features_plan.py", "ferro", memory="4GiB")


def test_every_check_of_plans_is_expected() -> None:
    assert set(checks_of("features_plan.py")) == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_plans(name: str) -> None:
    found = plans()[name]
    assert "error" not in found, found["error"]
    assert found["value"] == EXPECTED[name]


def test_groups_of_pools_of_another_allocator_are_not_planned(run_simulated: RunSimulated) -> None:
    program = (
        "import torch, ferro_alloc\n"
        "from ferro_alloc import graphs\n"
        "ferro_alloc.install(ferro_alloc.Config(layout='segments'))\n"
        "x = torch.ones(8, device='cuda')\n"
        "try:\n"
        "    graphs.plan(lambda: x + 1, [()], pools=['exclusive'])\n"
        "except ferro_alloc.FerroError as error:\n"
        '    print("PyTorch\'s own allocator, which shares no pages" in str(error))\n'
    )
    program += "print(list(graphs.plan(lambda: x + 1).sets))\n"
    done = run_simulated(program, memory="256MiB")
    assert done.stdout.splitlines() == ["True", "['separate', 'shared']"]


def planned(live: int, scratch: int, reserved: int) -> PlannedCapture:
    return PlannedCapture("", live - 1, 1, scratch, 0, reserved)


def test_the_least_memory_of_a_set() -> None:
    captures = [planned(30, 95, 130), planned(31, 40, 80), planned(5, 100, 110)]
    sizes = {
        pools: reserved_without_gaps(captures, pools, 10)
        for pools in ("separate", "shared", "exclusive", "exclusive shared")
    }
    assert sizes == {
        "separate": 320,
        "shared": 170,  # 30 + 31 + 5 + 100, in tens
        "exclusive": 30 + 40 + 10 + 100,
        "exclusive shared": 30 + 40 + 10 + 100,
    }
    # The results of later captures lie in the scratch of the first.
    assert reserved_without_gaps([planned(10, 90, 100), planned(20, 5, 30)], "shared", 10) == 100


def test_a_plan_is_a_table() -> None:
    capture = PlannedCapture("8", 3 * MIB, MIB, 1100 * MIB, MIB // 2, 1106 * MIB)
    found = PlannedSet("shared", 1108 * MIB, MIB // 2, False)
    plan = Plan((capture,), {"shared": found}, 8 * MIB)
    assert found.total_bytes == 1108 * MIB + MIB // 2
    assert str(plan).splitlines() == [
        "MiB       results  state  scratch  driver  reserved",
        "8             3.0    1.0  1,100.0     0.5   1,106.0",
        "one pool      3.0    1.0              0.5   1,108.0  estimated",
        "kept by the program and libraries: 8.0 MiB",
    ]
