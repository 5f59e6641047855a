"""The families that are compared with a real GPU: they run, and differences are found."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

from benchmarks.families import requests
from benchmarks.families.__main__ import Case, cases_of, compare, reserved_on_gpu
from benchmarks.families.comparison import Record, faults, judged, pairs, summary
from benchmarks.families.table import FAMILIES, MIB, SIZES
from benchmarks.harness.processes import SIMULATED_ALLOCATORS, Child
from tests.conftest import RunProgram
from tools.gpu import gpu_count

on_simulated_gpu = pytest.mark.skipif(gpu_count() > 0, reason="this machine has an NVIDIA GPU")
RUN = "import runpy, sys\nrunpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)\n"
CONTEXT_AND_LIBRARIES = 648871936 + 152 * MIB


pytestmark = pytest.mark.long


@on_simulated_gpu
def test_smoke(run_program: RunProgram, tmp_path: Path) -> None:
    output = tmp_path / "families.json"
    # Records of an earlier run stay, except those that are measured again.
    left = [
        Record("llama", "native", "ample", 100, fits=True),
        Record("lstm", "native", "whole", None, problem="an older run"),
    ]
    output.write_text(json.dumps([vars(record) for record in left]))
    command = ["benchmarks.families", "--simulated", "--smoke", "--output", str(output)]
    command += ["--requests", str(tmp_path / "requests.json.gz")]
    run_program(RUN, *command, "--allocators", "native", "ferro_alloc")
    stored = [Record(**record) for record in json.loads(output.read_text())]
    assert [record for record in stored if record.family == "llama"] == left[:1]
    records = [record for record in stored if record.family != "llama"]
    assert {(r.family, r.allocator) for r in records} == {
        (family, allocator)
        for family in ("transformer", "lstm", "fsdp2")
        for allocator in ("native", "ferro_alloc")
    }
    assert len(records) == 6
    asked = requests.read(tmp_path / "requests.json.gz")
    assert {name.split()[0] for name in asked} == {r.family for r in records}
    for record in records:
        if record.allocator == "native":
            # The peak of requested bytes; the allocator rounds them up.
            peak = max(accumulate(asked[" ".join(record.key)]))
            assert 0.9 * record.peak_allocated < peak <= record.peak_allocated
    for record in records:
        assert record.fits
        assert not record.problem
        assert 10 * MIB < record.peak_allocated <= record.peak_reserved
        # NVML on the simulated GPU reports the same as the card.
        assert record.outside == CONTEXT_AND_LIBRARIES
        assert record.attention == ([] if record.family == "lstm" else ["cudnn"])


@on_simulated_gpu
def test_the_largest_batch_is_asked_of_one_card_and_tried_on_another(
    run_program: RunProgram, tmp_path: Path
) -> None:
    output = tmp_path / "largest.json"
    command = ["benchmarks.families.largest", "--simulated", "--smoke", "--output", str(output)]
    run_program(RUN, *command, "--only", "transformer", "--allocators", "native")
    (record,) = json.loads(output.read_text())
    assert record["problem"] == ""
    assert record["largest"] > 1
    assert record["largest"] in record["tried"]
    assert (record["fits"], record["one_more_fits"]) == (True, False)


@on_simulated_gpu
@pytest.mark.parametrize("family", ["transformer", "fsdp2"])
def test_a_limit_is_what_the_allocator_may_reserve(family: str) -> None:
    words = ["--family", family, "--allocator", "native", "--smoke", "--simulated"]
    with Child("benchmarks.families.child", [*words, "--limit", "64"]) as child:
        found = child.read()
    assert not found["fits"]
    assert "out of memory" in found["failure"]
    assert 32 * MIB < found["peak_reserved"] <= 64 * MIB


def test_each_family_has_three_sizes() -> None:
    for family in FAMILIES.values():
        ample, tight, short = (family.limit(size) for size in SIZES)
        reserved, allocated = family.peaks
        assert short < allocated <= reserved < tight < ample
        assert {ample % 2, tight % 2, short % 2} == {0}


@pytest.mark.parametrize("allocator", SIMULATED_ALLOCATORS)
def test_two_sizes_lie_around_what_the_allocator_reserved(allocator: str) -> None:
    for family in FAMILIES:
        reserved = reserved_on_gpu()[family, allocator] / MIB
        above, below = (Case(family, allocator, size, False).limit for size in ("above", "below"))
        assert above is not None
        assert below is not None
        assert 1.02 * reserved < above <= 1.02 * reserved + 2
        assert 0.98 * reserved - 2 < below <= 0.98 * reserved


def record(size: str = "ample", fits: bool = True, reserved: int = 1000, **more: str) -> Record:
    made = Record("llama", "native", size, 2000, fits, peak_reserved=reserved, device="H100")
    return replace(made, **more)


def test_equal_records_have_no_fault() -> None:
    records = [record(), record("short", fits=False)]
    found, problems = pairs(records, records)
    assert len(found) == 2
    assert faults(found) == problems == []
    assert summary(found).startswith("2 runs: peak reserved differs by 0.00% in the median")


@pytest.mark.parametrize(
    ("simulated", "fault"),
    [
        (record(reserved=1051), "llama under native, ample: peak reserved differs by +5.1%"),
        (record(reserved=1021), "peak reserved differs by 2.1% in the median, 2% at most"),
        (record(reserved=979), "peak reserved differs by 2.1% in the median, 2% at most"),
    ],
)
def test_other_peaks_are_faults(simulated: Record, fault: str) -> None:
    found, _ = pairs([record()], [simulated])
    assert fault in faults(found)


def test_what_fits_on_the_simulated_gpu_alone_is_a_fault() -> None:
    gpu = [record(), record("tight", fits=False)]
    found, _ = pairs(gpu, [record(), record("tight")])
    assert faults(found) == ["llama under native, tight: fits on the simulated GPU alone"]


def test_one_false_alarm_in_fifty_is_allowed() -> None:
    gpu = [record(str(number)) for number in range(50)]
    simulated = [record("0", fits=False), *gpu[1:]]
    assert faults(pairs(gpu, simulated)[0]) == []
    simulated[1] = record("1", fits=False)
    assert len(faults(pairs(gpu, simulated)[0])) == 2


def test_what_cannot_be_compared_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = [record(), record("tight", problem="killed"), record("short")]
    simulated = [record(), record("tight"), replace(record("short"), limit=1)]
    found, problems = pairs([*gpu, record("other")], simulated)
    assert [pair.gpu.size for pair in found] == ["ample"]
    assert len(problems) == 3
    assert compare(gpu, simulated) == 1
    assert "llama under native, tight: killed" in capsys.readouterr().err


def test_families_without_cudnn_are_not_judged() -> None:
    plain = replace(record(), family="llama_plain")
    found, problems = pairs([plain, record()], [plain, record()])
    assert problems == []
    assert [pair.gpu.family for pair in judged(found)] == ["llama"]


def test_missing_runs_of_the_gpu_are_reported() -> None:
    _, problems = pairs([record()], [record(), replace(record(), family="lstm")])
    assert problems == ["lstm: 1 runs are not there of the GPU"]


def test_cases() -> None:
    import argparse

    options = argparse.Namespace(
        smoke=False, only=None, simulated=True, sizes=SIZES, allocators=SIMULATED_ALLOCATORS
    )
    cases = cases_of(options)
    plain = sum(family.plain for family in FAMILIES.values())
    assert len(cases) == len(set(cases)) == 9 * (len(FAMILIES) + plain)
    assert len(FAMILIES) >= 12
    options.only = ["resnet50_plain", "resnet50"]
    sizes = [(case.family, case.size) for case in cases_of(options)][::3]
    assert sizes == [(name, size) for name in reversed(options.only) for size in SIZES]
    options.only = ["resnet"]
    with pytest.raises(ValueError, match="no family resnet: expected of compiled, llama"):
        cases_of(options)


def test_differing_requests_are_reported() -> None:
    same = [2 * MIB, 4 * MIB, -2 * MIB]
    gpu = {"llama native ample": [*same, 8 * MIB, 8 * MIB], "unet native ample": same}
    simulated = {"llama native ample": [*same, 1 * MIB]}
    (row,) = requests.rows(gpu, simulated)
    peaks = ["20.0", "6.0"]
    assert row == ["llama", "4", "3", *peaks, "3", "2 x 8.00", "1 x 1.00"]
