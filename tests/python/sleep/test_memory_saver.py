"""ferro_alloc.memory_saver: the interface of torch_memory_saver on memory of ferro_alloc."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import RunSimulated
from tests.python.torch_programs import simulated

WANTED: dict[str, Any] = {
    "contents_stay_or_are_dropped": [94, True, [True, True, True, True, True, True], [], 1],
    "tags_pause_alone": [26, 66, 26, 0, True],
    "repeated_pauses": [0, 20],
    "contents_kept_once_are_not_dropped_by_a_second_pause": True,
    "paused_tensors_are_freed": [62, 20, True, 62],
    "regions_may_be_entered_while_they_are_paused": [22, 0, 8, True],
    "freed_memory_of_a_region_returns_at_its_pause": [134, 134, 34, 74, True],
    "regions_nest": [40, 80, True, []],
    "disable_inside_and_outside_of_regions": [30, True, 30],
    "regions_of_several_threads": [[], 40, 80, True],
    "pauses_beside_regions_of_other_threads": [[], True],
    "captures_in_regions": [30, True, [True, True, True, True, True, True]],
    "regions_in_captures": [[True, True], [True, True, True, True]],
    "graphs_of_the_saver": [8, [True, True], [True, True, True, True]],
    "graphs_of_two_kinds_in_one_pool": [True, [True, True], []],
    "other_tags_inside_a_region_stay_awake": [True, True],
    "workspaces_of_libraries_stay_awake": [12, 12, 0, []],
    "scratch_of_graphs_of_the_saver": [36, [True, True]],
    "strange_tags": [
        True,
        18,
        [
            f"FerroError: torch_memory_saver got the tag {tag}: expected a string"
            for tag in ("None", "['a']", "['a']")
        ],
    ],
    "too_little_memory_to_resume": [True, True],
    "errors_of_the_program_in_a_region": [
        ["ZeroDivisionError", "OutOfMemoryError"],
        True,
        True,
        True,
    ],
    "unsupported_parts_of_the_package": [
        [
            "FerroError",
            "FerroError",
            "FerroError",
            "FerroError",
            "FerroError",
            "ValueError",
            "ValueError",
            "FerroError",
        ],
        ["ferro_alloc", "ferro_alloc", 3145729, False, True, None],
        [True],
    ],
    "processes_that_are_started": ["1", None, "strict", "strict"],
    "uninstalled_allocators_still_pause_and_resume": [20, True, True],
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return simulated("saver.py", "1", memory="1GiB")


@pytest.mark.parametrize("case", WANTED)
def test_saver(found: dict[str, Any], case: str) -> None:
    assert found[case] == WANTED[case]


def test_every_case_is_tested(found: dict[str, Any]) -> None:
    assert set(found) == set(WANTED)


@pytest.mark.parametrize("kept", ["1", "0"])
def test_all_memory_of_a_process(kept: str, run_simulated: RunSimulated) -> None:
    done = run_simulated("saver_of_process.py", kept, memory="1GiB", destructors=True)
    *whole, alone, back = json.loads(done.stdout.splitlines()[-1])
    contents = [True] * (5 if kept == "1" else 2)
    # The memory of disable() stays: 20 MiB and the page of a small tensor.
    assert whole == [[22, [True] * 3, contents]] * 2
    assert alone == [20, True]
    assert back


REFUSED = """\
import sys
import ferro_alloc
import torch
from ferro_alloc.memory_saver import torch_memory_saver as saver

def attempt(call):
    try:
        call()
    except ferro_alloc.FerroError as error:
        print(error)
    else:
        print("nothing")

def enter(context):
    with context:
        pass

if sys.argv[1] == "installed":
    ferro_alloc.install()
graph = torch.cuda.CUDAGraph()
attempt(lambda: enter(saver.region("a")))
attempt(lambda: enter(saver.cuda_graph(graph)))
attempt(lambda: enter(saver.disable()))
attempt(saver.pause)
attempt(saver.resume)
print(torch.ones(3, device="cuda").tolist(), saver.enabled)
"""


def test_without_installation_every_call_refuses(run_simulated: RunSimulated) -> None:
    *said, last = run_simulated(REFUSED, "not").stdout.splitlines()
    assert len(said) == 5
    for line in said:
        assert line.startswith("torch_memory_saver.")
        assert "PyTorch's allocator is 'native': call ferro_alloc.install() first" in line
    assert last == "[1.0, 1.0, 1.0] False"


def test_memory_without_pages_is_refused(run_simulated: RunSimulated) -> None:
    conf = {"FERRO_ALLOC_CONF": "layout:segments"}
    region, graph, *others, last = run_simulated(REFUSED, "installed", env=conf).stdout.splitlines()
    for line in (region, graph):
        assert "has the layout 'segments', whose memory cannot sleep" in line
    assert others == ["nothing"] * 3
    assert last == "[1.0, 1.0, 1.0] True"


def test_graphs_without_pages_are_refused(run_simulated: RunSimulated) -> None:
    conf = {"FERRO_ALLOC_CONF": "graph_layout:segments"}
    region, graph, *_ = run_simulated(REFUSED, "installed", env=conf).stdout.splitlines()
    assert region == "nothing"
    assert "graph_layout is 'segments', whose memory cannot sleep" in graph


def test_without_a_cache_regions_are_refused(run_simulated: RunSimulated) -> None:
    off = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    region, *_ = run_simulated(REFUSED, "installed", env=off).stdout.splitlines()
    assert "unset PYTORCH_NO_CUDA_MEMORY_CACHING" in region


def test_several_devices(run_simulated: RunSimulated) -> None:
    done = run_simulated("saver.py", "3", memory="1GiB", count=3)
    found = json.loads(done.stdout.splitlines()[-1])
    # A region's memory on another device sleeps too, if its pages contain no other memory.
    assert found["several_devices"] == [[30, 32, 32], True, True]
