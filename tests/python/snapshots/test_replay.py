"""Replays of snapshots, compared with the peaks of the recorded programs."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferro_alloc import FerroError
from ferro_alloc.__main__ import main
from ferro_alloc.sim.cards import CARDS
from ferro_alloc.snapshots import _findings, _replay, _trace
from ferro_alloc.snapshots._findings import Findings, find, usable
from ferro_alloc.snapshots._replay import Outcome, Run, kept_settings
from ferro_alloc.snapshots._state import Pin, state_at
from tests import programs
from tests.programs import find_program
from tests.python.commands import ForkedChildren, command

SETTINGS = {"native": "", "expandable": "expandable_segments:True", "ferro_alloc": ""}

Record = Callable[[str, int, int], tuple[Path, dict[str, int]]]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The snapshot and the peaks of a seeded program, which runs once for all tests."""
    folder = tmp_path_factory.mktemp("recorded")

    @cache
    def run(allocator: str, seed: int, steps_before: int) -> tuple[Path, dict[str, int]]:
        path = folder / f"{allocator}-{seed}-{steps_before}.pickle"
        words = (allocator, str(seed), str(steps_before), str(path))
        setting = SETTINGS[allocator]
        done = programs.run_simulated(
            [find_program("recorded_program.py"), *words],
            {"gpu": "h200", "backing": False},
            {"PYTORCH_CUDA_ALLOC_CONF": setting} if setting else {},
        )
        assert done.returncode == 0, done.stderr
        return path, json.loads(done.stdout.splitlines()[-1])

    return run


def found(path: Path) -> Findings:
    return find(_trace.read(_trace.load(path), 0), tries=False, cards=False)


def peaks(findings: Findings) -> dict[str, int]:
    return {r.run.allocator: r.outcome.peak_reserved_bytes for r in findings.results}


@pytest.mark.long
def test_replays_of_a_whole_trace_have_the_peaks_of_programs(record: Record) -> None:
    """Each snapshot, recorded under any allocator, is replayed under all three."""
    own = {name: record(name, 1, 0) for name in SETTINGS}
    for allocator, (path, had) in own.items():
        findings = found(path)
        assert findings.trace.allocator == allocator
        assert findings.recorded_peak == had["reserved"]
        assert findings.peak_active == pytest.approx(had["active"], rel=0.01)
        for name, peak in peaks(findings).items():
            print(f"{allocator} under {name}: {peak / own[name][1]['reserved']:.4f}")
            # ferro_alloc and the others notice free blocks at different times, and emptying a cache
            # without effect leaves no entry: measured -4.2 to 4.3 %.
            tolerance = 0.06 if (allocator == "ferro_alloc") != (name == "ferro_alloc") else 0.02
            assert peak == pytest.approx(own[name][1]["reserved"], rel=tolerance), (allocator, name)


# Native with 7: segments were released, and others took their addresses. Expandable segments with 5
# and 7: blocks span ranges, and consecutive gaps are too small for a request.
@pytest.mark.parametrize(
    ("allocator", "seed"),
    [
        ("native", 2),
        pytest.param("native", 7, marks=pytest.mark.long),
        pytest.param("expandable", 5, marks=pytest.mark.long),
        pytest.param("expandable", 7, marks=pytest.mark.long),
    ],
)
def test_a_trace_that_begins_in_the_middle_starts_from_the_layout_of_its_first_moment(
    allocator: str, seed: int, record: Record, forked_replays: None
) -> None:
    path, own = record(allocator, seed, 300)
    findings = found(path)
    trace = findings.trace
    assert trace.born_before >= 100
    assert findings.recorded_peak == own["reserved"]
    begins = sum(r.size for r in trace.ranges if r.begin < 0)
    assert findings.own.outcome.reserved_at_start_bytes == begins
    assert peaks(findings)[allocator] == pytest.approx(own["reserved"], rel=0.02)
    assert any("older than the first event" in sentence for sentence in findings.unknown)


def test_notes_of_ferro_alloc_are_read_where_torch_2_15_has_them(record: Record) -> None:
    path, _ = record("ferro_alloc", 1, 0)
    snapshot = _trace.load(path)
    before = _trace.read(snapshot, 0)
    for entry in snapshot["device_traces"][0]:
        if entry["action"].startswith("segment"):
            entry["internal_metadata"] = entry.pop("user_metadata")
    after = _trace.read(snapshot, 0)
    assert before.allocator == after.allocator == "ferro_alloc"
    assert before.emptied == after.emptied


def test_ferro_alloc_is_recognised_under_metadata_of_the_program(record: Record) -> None:
    path, _ = record("ferro_alloc", 1, 0)
    snapshot = _trace.load(path)
    before = _trace.read(snapshot, 0)
    for entry in snapshot["device_traces"][0]:
        entry["user_metadata"] = "a tag"
    after = _trace.read(snapshot, 0)
    assert after.allocator == "ferro_alloc"
    assert before.emptied == after.emptied


def test_state_adds_up(record: Record) -> None:
    for allocator in SETTINGS:
        path, _ = record(allocator, 1, 0)
        trace = _trace.read(_trace.load(path), 0)
        reserved, active = trace.reserved(), trace.active()
        event = reserved.index(max(reserved))
        state = state_at(trace, event)
        assert state.reserved == reserved[event]
        assert state.active == active[event]
        assert state.reserved == state.active + state.stranded + state.cached
        pinned = sum(pin.stranded_bytes for pin in state.pins)
        assert pinned == pytest.approx(state.stranded, abs=len(state.pins))


@pytest.fixture
def forked_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_replay, "subprocess", ForkedChildren)


def test_command_reports_what_would_have_helped(
    record: Record, forked_replays: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path, own = record("native", 1, 0)
    assert main(["replay", str(path), "--json"]) == 0
    (findings,) = json.loads(capsys.readouterr().out)
    assert findings["recorded_peak_reserved_bytes"] == own["reserved"]
    assert findings["replay_of_its_own_deviates"] == pytest.approx(0, abs=0.02)
    assert findings["helpful"][:2] == ["ferro_alloc", "expandable segments"]
    assert [result["smallest_card"] for result in findings["results"][:3]] == ["rtx-3070"] * 3
    assert findings["pins"][0]["line"].endswith("recorded_program.py:27 empty")
    assert main(["replay", str(path), "--quick"]) == 0
    text = capsys.readouterr().out
    assert "what would have helped" in text
    assert "recorded_program.py:27 empty" in text
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in text


class RunsCode:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("this ran",))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"no pickle", "is not a pickle of a snapshot"),
        (pickle.dumps([1, 2]), "is not a memory snapshot: expected a dictionary"),
        (pickle.dumps(RunsCode()), "snapshots have plain values"),
    ],
)
def test_an_invalid_snapshot_is_refused_in_one_sentence(
    content: bytes, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.pickle"
    path.write_bytes(content)
    with pytest.raises(FerroError, match=problem):
        _trace.load(path)
    assert capsys.readouterr().out == ""


def test_a_snapshot_without_events_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))
    done = command("replay", str(path), start_anew=True)
    assert done.returncode == 1
    assert "_record_memory_history()" in done.stderr


@pytest.mark.parametrize("needed", [20 << 30, 30 << 30, 45 << 30, 47 << 30, 1 << 50])
def test_smallest_card_is_the_first_of_the_table_on_which_the_trace_fits(
    needed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def replayed(trace: object, runs: list[Run]) -> list[Outcome]:
        asked.append(runs[0].memory_bytes)
        return [Outcome(0, 0, 0, 7, -1 if asked[-1] >= needed else 5, [])]

    monkeypatch.setattr(_findings, "replay", replayed)
    whole = Outcome(48 << 30, 20 << 30, 0, 0, -1, [])
    ((key, flushes),) = _findings._smallest_cards(None, [Run("native")], [whole])  # type: ignore
    fitting = [c for c in CARDS if usable(c) >= min(needed, 48 << 30)]
    smallest = min(fitting, key=usable)
    assert key == smallest.key
    assert flushes == (7 if usable(smallest) < 48 << 30 else 0)
    between = [c for c in CARDS if 20 << 30 <= usable(c) < 48 << 30]
    assert 1 <= len(asked) <= len(between).bit_length()


@pytest.mark.parametrize(
    ("option", "said"), [("snapshot", "that is the snapshot;"), ("--before", "that of --before;")]
)
def test_a_report_does_not_replace_a_snapshot(
    option: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, old = tmp_path / "new.pickle", tmp_path / "old.pickle"
    for file in (new, old):
        file.write_text("kept")
    report = old if option == "--before" else new
    assert main(["replay", str(new), "--before", str(old), "--report", str(report)]) == 1
    assert said in capsys.readouterr().err
    assert new.read_text() == old.read_text() == "kept"


@pytest.mark.parametrize(
    ("blocks", "said"), [(1, "1 block of 2.00"), (1200, "1,200 blocks of 2.00")]
)
def test_blocks_that_strand_memory_are_counted(blocks: int, said: str) -> None:
    place = SimpleNamespace(kind="large", stream=0, stranded=1, cached=0, reserved=1 << 21)
    state = SimpleNamespace(stranded=1, cached=0, places=[place])
    state.pins = [Pin("train.py:1", blocks, 1 << 21, 1)]
    found: Any = SimpleNamespace(state=state)
    assert f" by {said} MiB: train.py:1" in Findings._where(found)[-1]


def test_settings_of_the_program_are_kept_but_for_the_allocator() -> None:
    settings = "backend:native, expandable_segments:True,max_split_size_mb:64"
    assert kept_settings(settings) == "max_split_size_mb:64"
