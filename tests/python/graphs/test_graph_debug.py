"""The debug mode of graphs finds planted misuses, and raises no error in correct programs."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ferro_alloc import Config, FerroError, graphs
from ferro_alloc.graphs import GraphMisuseError, MisuseKind
from tests.conftest import RunSimulated
from tests.programs import find_program
from tests.python.random_programs import seeded
from tests.python.torch_programs import Result, checks_of, simulated

PAGE = 2 << 20
GRAPH = "graph 1 of pool 'decode'"

EXPECTED: dict[str, Any] = {
    "a_freed_input": [None, ["FREED_INPUT", GRAPH, PAGE, True, True], True, 1, True],
    "an_input_whose_memory_another_tensor_has": [True, ["FREED_INPUT", GRAPH, PAGE]],
    "an_input_that_is_freed_during_the_capture": ["FREED_INPUT", GRAPH, PAGE, True, True],
    "an_input_of_a_kernel": [None, ["FREED_INPUT", GRAPH, 4 * 64 * 64, True, True], 64],
    "a_recorded_buffer_is_kept": [None, 1],
    "memory_that_only_earlier_calls_used": [None] * 4,
    "a_freed_workspace": [None, ["FREED_WORKSPACE", GRAPH, 32 << 20, True, True], 64],
    "a_result_kept_across_the_replay_of_a_partner": [
        None,
        ["KEPT_RESULT", "graph 2 of pool 'step'", PAGE, True, True],
        "graph 1 of pool 'prefill'",
        None,
        2,
        PAGE // 4,
    ],
    "a_result_whose_pages_a_later_capture_has": [
        ["KEPT_RESULT", "graph 2 of pool 'step'", PAGE, True, True],
        "graph 3 of pool 'step'",
        True,
        1,
    ],
    "a_partner_of_no_group_does_no_harm": [[None] * 3, PAGE // 4],
    "a_graph_of_the_pool_that_was_given_the_same_memory": [
        [None] * 5,
        ["KEPT_RESULT", "graph 2 of pool 'step'", PAGE, True],
        "graph 3 of pool 'step'",
        2,
    ],
    "overlapping_replays_of_a_group": None,  # work that runs at once is in order
    "replays_that_the_program_orders": [True, 2, 2],
    "replays_that_the_group_orders": [True, 2, 2],
    "replays_of_pools_that_joined_by_their_handles": [True, 2, 2],
    "a_pool_that_is_released_under_its_graph": [
        None,
        ["DELETED_POOL", GRAPH, PAGE, True],
        PAGE // 4,
    ],
    "a_result_in_a_deleted_pool": [
        None,
        ["DELETED_POOL", "graph 1 of pool 'second'", PAGE, True],
        PAGE // 4,
    ],
    "a_result_in_scratch_of_a_graph_captured_before_the_pool_joined": [
        [[], []],
        "OVERWRITTEN_RESULT",
        [True, 0],
        ["OVERWRITTEN_RESULT", "graph 1 of pool 'late'", PAGE, True],
        "graph 2 of pool 'late'",
        True,
        True,
        [0, 0, 1],
        [True, False],
        1,
    ],
    "late_pools_in_random_orders": [0, True],
    "early_pools_in_random_orders": [0, 1],
    "nothing_is_left_when_it_is_off": [True, True, True, [False, True, False], True, PAGE],
}


@cache
def misuses(mode: str) -> Result:
    return simulated("features_misuse.py", "ferro", memory="1GiB", mode=mode, seed=1)


def value_of(mode: str, name: str) -> Any:
    found = misuses(mode)[name]
    assert "error" not in found, found["error"]
    return found["value"]


def test_every_check_is_expected() -> None:
    assert set(checks_of("features_misuse.py")) == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_misuse(name: str) -> None:
    assert value_of("eager", name) == EXPECTED[name]


@pytest.mark.parametrize("name", sorted(set(EXPECTED) - {"overlapping_replays_of_a_group"}))
def test_misuse_in_any_order(name: str) -> None:
    assert value_of("adversarial", name) == EXPECTED[name]


def test_overlapping_replays() -> None:
    number, error, partner, *kept = value_of("adversarial", "overlapping_replays_of_a_group")
    members = [GRAPH, "graph 1 of pool 'prefill'"]
    assert number > 0
    assert error == ["OVERLAP", members[number % 2], 4 * PAGE, True]
    assert partner == members[1 - number % 2]
    assert kept == [2, 2]


def test_a_misuse_is_an_error_of_the_package() -> None:
    error = GraphMisuseError(MisuseKind.OVERLAP, "graph 1", None, "graph 2")
    assert isinstance(error, FerroError)
    assert (error.graph, error.partner, error.address, error.bytes) == ("graph 1", "graph 2", 0, 0)
    assert "graph 1 is launched while graph 2" in str(error)
    assert error.allocated_at == error.freed_at == ()


def test_it_needs_ferro_alloc() -> None:
    with pytest.raises(FerroError):
        graphs.debug()


def test_a_program_may_request_it_where_the_setting_is_on(run_simulated: RunSimulated) -> None:
    program = (
        "import torch, ferro_alloc\n"
        "from ferro_alloc import graphs\n"
        "ferro_alloc.install(ferro_alloc.Config(graph_debug=True))\n"
        "with graphs.debug():\n"
        "    print(torch.ones(2, device='cuda').numel())\n"
    )
    assert run_simulated(program, memory="256MiB").stdout.split() == ["2"]


def test_it_is_off_by_default() -> None:
    assert not Config().graph_debug
    assert Config.parse("graph_debug:true") == Config(graph_debug=True)
    with pytest.raises(ValueError, match="graph_debug is 'yes': expected true or false"):
        Config.parse("graph_debug:yes")


def test_the_setting_turns_it_on_with_the_installation(run_simulated: RunSimulated) -> None:
    done = run_simulated(
        "import os\n"
        "os.environ['FERRO_ALLOC_CONF'] = 'graph_debug:true'\n"
        "import torch, ferro_alloc\n"
        "ferro_alloc.install()\n"
        "print(torch.cuda.is_initialized())\n"
        "def is_refused():\n"
        "    source = torch.ones(1 << 20, device='cuda')\n"
        "    torch.cuda.synchronize()\n"
        "    graph = torch.cuda.CUDAGraph()\n"
        "    with torch.cuda.graph(graph):\n"
        "        result = source + 1\n"
        "    graph.replay()\n"
        "    del source\n"
        "    try:\n"
        "        graph.replay()\n"
        "    except ferro_alloc.graphs.GraphMisuseError as error:\n"
        "        return error.kind.name\n"
        "print(is_refused(), torch._C._cuda_isHistoryEnabled())\n"
        "ferro_alloc.uninstall()\n"
        "print(is_refused(), torch._C._cuda_isHistoryEnabled())\n"
        "ferro_alloc.install()\n"
        "print(is_refused())\n"
        "ferro_alloc.uninstall()\n"
        "ferro_alloc.install(ferro_alloc.Config())\n"
        "print(is_refused())\n"
    )
    assert done.stdout == "False\nFREED_INPUT True\nNone False\nFREED_INPUT\nNone\n"


def test_the_setting_of_a_removed_allocator_has_no_effect(
    run_simulated: RunSimulated,
) -> None:
    done = run_simulated(
        "import torch, ferro_alloc\n"
        "ferro_alloc.install(ferro_alloc.Config(graph_debug=True))\n"
        "ferro_alloc.uninstall()\n"
        "torch.ones(1, device='cuda')\n"
        "print(torch._C._cuda_isHistoryEnabled())\n"
    )
    assert done.stdout == "False\n"


# Programs of other tests, and the least number of their checks. Each check is a separate program:
# one or more captures, mostly with replays.
CORRECT = {
    "features_graph_examples.py": 16,
    "features_captures.py": 31,
    "features_capture_pools.py": 9,
    "features_failed_captures.py": 9,
    "features_exclusive.py": 12,
    "features_trees.py": 6,
    "features_sizes.py": 8,
    "features_plan.py": 16,
    "features_graphs.py": 17,
    "features_training.py": 7,
}
# The first one also runs in any order.
LARGE = (
    "features_exclusive.py",
    "features_graph_examples.py",
    "features_graphs.py",
    "features_plan.py",
    "features_training.py",
    "features_trees.py",
)
# Checks whose result depends on the order in which work runs.
WRONG = {"a_missing_order_shows_as_wrong_bytes"}


def debugged(
    folder: Path, program: str, *arguments: str, start_anew: bool = False, **activate: Any
) -> tuple[Result, Any]:
    """The output of the program, and the counts of debugged.py."""
    counts = folder / "counts.json"
    found = simulated(
        "debugged.py",
        str(find_program(program)),
        *arguments,
        env={"FERRO_DEBUGGED": str(counts)},
        start_anew=start_anew,
        **activate,
    )
    return found, json.loads(counts.read_text())


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, marks=pytest.mark.long) if program in LARGE else program
        for program in CORRECT
    ],
)
def test_no_false_error(program: str, tmp_path: Path) -> None:
    found, counts = debugged(tmp_path, program, "ferro", memory="8GiB", count=2)
    assert len(found) >= CORRECT[program]
    errors = [f"{name}: {result['error']}" for name, result in found.items() if "error" in result]
    assert not errors, "\n".join(errors)
    assert counts["misuses"] == 0
    assert counts["graphs"] >= 5
    assert counts["blocks"] > 0


def test_no_false_error_in_any_order(tmp_path: Path) -> None:
    found, counts = debugged(
        tmp_path, "features_exclusive.py", "ferro", memory="8GiB", mode="adversarial", count=2
    )
    # One check leaves out the order between members.
    assert {name for name, result in found.items() if "error" in result} == WRONG
    assert "OVERLAP" in found[next(iter(WRONG))]["error"]
    assert counts["misuses"] == 1
    assert counts["replays"] > 200


ALL_EXTRAS = ("groups", "checkpoints", "own_pools", "scalars")


@pytest.mark.long
@pytest.mark.parametrize("program", ["sim_compile.py", "switching_trees.py"])
def test_no_false_error_in_compiled_functions(program: str, tmp_path: Path) -> None:
    # These programs choose the allocator before they import torch.
    found, counts = debugged(tmp_path, program, "ferro_alloc", start_anew=True, memory="8GiB")
    assert not any("error" in result for result in found.values() if isinstance(result, dict))
    assert counts["misuses"] == 0
    assert counts["graphs"] >= 7
    assert counts["replays"] >= 20


@pytest.mark.parametrize(
    ("programs", "seed", "extras"),
    [
        (2, "200", ALL_EXTRAS),
        pytest.param(4, "200", ALL_EXTRAS, marks=pytest.mark.long),
        pytest.param(4, "80", ("checkpoints", "own_pools", "clones"), marks=pytest.mark.long),
        pytest.param(4, "400", ("groups",), marks=pytest.mark.long),
    ],
)
def test_no_false_error_in_random_programs(
    programs: int, seed: str, extras: tuple[str, ...], tmp_path: Path
) -> None:
    counts = tmp_path / "counts.json"
    options = ["--seed", seed, "--programs", str(programs), "--extras", *extras]
    found = seeded(*options, runner="debugged.py", env={"FERRO_DEBUGGED": str(counts)})
    assert found["errors"] == []
    assert found["wrong_bytes"] == 0
    seen = json.loads(counts.read_text())
    assert seen["misuses"] == 0
    assert seen["replays"] > 50
