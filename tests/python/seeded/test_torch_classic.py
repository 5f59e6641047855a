"""The classic layout compared with native: the same numbers after every step of a program."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import RunSimulated
from tests.python.probes import build_faulty_driver
from tests.python.torch_programs import simulated

Line = dict[str, Any]


class Case(NamedTuple):
    seed: int
    fraction: float
    settings: str
    steps: int = 1500


CASES = {
    "defaults": Case(1, 0.5, ""),
    "whole_card": Case(2, 1.0, ""),
    "max_split_21": Case(3, 0.4, "max_split_size_mb:21"),
    "max_split_40_rounding_50": Case(
        5,
        0.5,
        "max_split_size_mb:40,max_non_split_rounding_mb:50,large_segment_size_mb:30",
    ),
    "power_of_two": Case(6, 0.5, "roundup_power2_divisions:4"),
    "powers_of_two": Case(7, 0.5, "roundup_power2_divisions:[1:4,4:2,16:1,32:8,>:2]"),
    "garbage_collection": Case(8, 0.5, "garbage_collection_threshold:0.6"),
    "all_together": Case(
        9,
        0.45,
        "max_split_size_mb:30,roundup_power2_divisions:2,garbage_collection_threshold:0.7",
    ),
}

BRIEF = ("defaults", "all_together")
"""Each other case has one of the settings that `all_together` combines."""


def difference(step: int, names: list[str], ours: Line, native: Line) -> str:
    """The first statistic that differs, with both values."""
    for name, found, expected in zip(names, ours["stats"], native["stats"], strict=True):
        if found != expected:
            return f"step {step} ({native['done']}): {name} is {found}, native has {expected}"
    return f"step {step}: {ours['done']}, {ours.get('layout')} is not {native['done']}, " + str(
        native.get("layout")
    )


@pytest.mark.parametrize(
    "name",
    [name if name in BRIEF else pytest.param(name, marks=pytest.mark.long) for name in CASES],
)
def test_every_number_is_natives(run_simulated: RunSimulated, name: str) -> None:
    case = CASES[name]
    arguments = [str(case.seed), str(case.steps), str(case.fraction)]
    env = {"PYTORCH_CUDA_ALLOC_CONF": case.settings} if case.settings else {}

    def lines(allocator: str) -> list[Line]:
        ended = run_simulated("classic.py", allocator, *arguments, env=env, memory="1GiB")
        return [json.loads(line) for line in ended.stdout.splitlines()]

    *ours, our_end = lines("segments")
    *native, native_end = lines("native")
    names = native_end["names"]
    assert len(ours) == len(native) == case.steps
    for step, (found, expected) in enumerate(zip(ours, native, strict=True)):
        if found != expected:
            pytest.fail(difference(step, names, found, expected), pytrace=False)
    assert our_end == native_end
    assert our_end["reserved"] == 0
    assert our_end["leaked"] == 0
    assert_the_program_was_hard(ours, names, case)


def assert_the_program_was_hard(steps: list[Line], names: list[str], case: Case) -> None:
    """The program must reach the hard cases; otherwise equal numbers would prove little."""
    done = [step["done"] for step in steps]
    assert sum(text.startswith("out of memory") for text in done) >= 5

    def values(name: str) -> list[int]:
        column = names.index(name)
        return [step["stats"][column] for step in steps]

    def rise(name: str) -> int:
        """The increases of a count that the program resets at times."""
        column = values(name)
        return sum(max(0, after - before) for before, after in pairwise(column))

    assert rise("num_alloc_retries") >= 5
    assert rise("num_device_free") >= 20
    assert rise("num_sync_all_streams") >= 5
    assert max(values("inactive_split.all.current")) >= 10
    assert sum("layout" in step for step in steps) >= case.steps // 50
    if size := re.search(r"max_split_size_mb:(\d+)", case.settings):
        assert set(values("max_split_size")) == {int(size[1]) << 20}
        assert max(values("oversize_segments.current")) >= 1
        assert rise("oversize_allocations.allocated") >= 10
    if "roundup" in case.settings:
        pairs = zip(
            values("allocated_bytes.all.current"),
            values("requested_bytes.all.current"),
            strict=True,
        )
        assert max(allocated / max(requested, 1 << 20) for allocated, requested in pairs) > 1.1


def test_a_device_without_virtual_memory_management(tmp_path: Path) -> None:
    """It gets this layout under every setting, and `status()` reports that."""
    library = build_faulty_driver(tmp_path)
    found = simulated("no_virtual_memory.py", str(library), memory="1GiB")
    assert found["layout"] == "segments"
    assert "settings  page_size_mb:2,memory_limit_mb:none" in found["status"]
    assert "it has no virtual memory management, which pages need" in found["status"]
    # Small and large segments, of the default pool and of the graph's pool.
    assert found["segments"] == [2 << 20, 2 << 20, 20 << 20, 20 << 20]
    assert (found["intact"], found["created"]) == (True, False)
    assert found["handle"] == [2, ord("c")]  # one of cudaIpcGetMemHandle
    assert (found["allocated_at_end"], found["reserved_at_end"]) == (0, 0)
