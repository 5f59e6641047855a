"""The benchmark of host time against size measures every operation in every world."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.cpp_program import build
from benchmarks.scaling import program as scaling
from benchmarks.scaling.program import COMPLEXITY, SMOKE_SIZES, Record
from tests import programs
from tests.programs import ROOT, Completed

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def program() -> Path:
    return build("scaling")


def smoke(program: Path, *arguments: str) -> Completed:
    command = [sys.executable, "-m", "benchmarks.scaling", "--smoke", "--program", str(program)]
    return programs.run([*command, *arguments], folder=ROOT)


def test_every_operation_is_measured_in_every_world(program: Path, tmp_path: Path) -> None:
    output = tmp_path / "output.json"
    done = smoke(program, "--json", "--output", str(output))
    assert (done.returncode, done.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert json.loads(output.read_text()) == found
    assert [(record["dimension"], record["operation"]) for record in found] == [
        (dimension, operation) for dimension in SMOKE_SIZES for operation in COMPLEXITY
    ]
    for record in found:
        assert record.keys() == Record.__dataclass_fields__.keys()
        assert tuple(record["sizes"]) == SMOKE_SIZES[record["dimension"]]
        assert record["problems"] == ["", ""]
        assert [len(times) for times in record["nanoseconds"]] == [1, 1]
        assert all(times[0] >= 0 for times in record["nanoseconds"])
    growing = {record["operation"] for record in found if record["result_grows"]}
    assert growing == {"reserved_by_pool", "live_block_around", "segments"}


def test_the_table_has_a_line_for_each_operation(program: Path) -> None:
    done = smoke(program)
    assert (done.returncode, done.stderr) == (0, "")
    heading, _, *lines = done.stdout.splitlines()
    assert heading == (
        "| operation | complexity | 100 blocks | 1,000 blocks | ratio | 2 streams | 100 streams"
        " | ratio | 1 pool | 100 pools | ratio |"
    )
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines]
    assert [name.removesuffix(" (its result grows)") for name in names] == list(COMPLEXITY)
    assert all(line.count("|") == heading.count("|") for line in lines)


def test_a_world_that_cannot_be_made_is_a_problem(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Each pool has a page of 2 MiB.
    monkeypatch.setitem(SMOKE_SIZES, "pools", (1, 1_000))
    common = ["--smoke", "--dimensions", "pools", "--memory-gib", "1", "--program", str(program)]
    assert scaling.main([*common, "--json"]) == 1
    printed = capsys.readouterr()
    (problem,) = printed.err.splitlines()
    assert problem.startswith("1,000 pools: pool ")
    for record in json.loads(printed.out):
        assert [len(times) for times in record["nanoseconds"]] == [1, 0]
        assert record["problems"][0] == ""
        assert scaling.cells(Record(**record))[1:] == ("-", "-")


def test_wrong_arguments_are_refused(program: Path) -> None:
    for arguments in ([], ["heaps", *"1234567"], ["pools", *"1234560"], ["pools", *"12345"]):
        done = subprocess.run([program, *arguments], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("usage: scaling blocks|streams|pools")


def test_times_have_a_unit_and_three_digits() -> None:
    times = (0.4, 9.96, 38, 999.4, 999.6, 57_300, 4_100_000, 2_400_000_000)
    words = ["0.4 ns", "10.0 ns", "38 ns", "999 ns", "1.0 us", "57 us", "4.1 ms", "2.4 s"]
    assert [scaling.in_words(time) for time in times] == words


def test_medians_of_the_rounds_are_compared() -> None:
    record = Record(
        operation="view",
        dimension="blocks",
        result_grows=False,
        sizes=(1_000, 1_000_000),
        nanoseconds=([40.0, 20.0, 90.0], [80.0, 120_000.0, 100.0]),
        problems=("", ""),
        memory_gib=192,
        addresses_tib=128,
    )
    assert scaling.cells(record) == ("40 ns", "100 ns", "2.5")
    headings, lines = scaling.rows([record])
    assert headings == ["operation", "complexity", "1,000 blocks", "1,000,000 blocks", "ratio"]
    assert lines == [["view", COMPLEXITY["view"], "40 ns", "100 ns", "2.5"]]
