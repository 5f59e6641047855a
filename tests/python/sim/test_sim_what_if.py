"""`simulate --what-if` on programs whose values change nothing, fail, or are not known to fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ferro_alloc import FerroError
from ferro_alloc.fit import _runs
from ferro_alloc.fit._lost import LostError, ending
from tests.python.commands import fork_run
from tests.python.sim.conftest import Result
from tests.python.sim.test_sim_certainty import GIB, run_of

QUESTION = _runs.Question("batch", 1, 1 << 20)
NAMES = ["train.py", "--batch", "4"]

Run = Callable[[int], Result]


def asked(
    monkeypatch: pytest.MonkeyPatch, run: Run, question: _runs.Question = QUESTION
) -> tuple[Result, list[str]]:
    """The answer, and its lines, if the program with a value gives this result."""

    def run_child(self: _runs.Child, *words: str, **options: Any) -> Result:
        return run(int(self.program[-1]))

    monkeypatch.setattr(_runs.Child, "run", run_child)
    answer = _runs.what_if(_runs.Child([], NAMES), question)
    return answer, _runs.answer_of(question, answer)


def of_size(size: int, verdict: str = "fits", **more: Any) -> Result:
    """Of a program whose peak is `size`."""
    result = {**run_of(verdict), **more}
    (device,) = result["devices"]
    device |= {"peak_in_use_bytes": size, "allocated_bytes": size, "spare_bytes": 8 * GIB - size}
    return result


def test_more_than_the_data_set_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, lines = asked(monkeypatch, lambda value: of_size(GIB + min(value, 100)))
    assert [each["value"] for each in answer["tries"]] == [4, 8, 16, 32, 64, 128, 256, 1 << 20]
    assert (answer["largest"], answer["unchanged_from"], answer["sure"]) == (1 << 20, 128, True)
    assert lines[1].startswith("simulated ")
    assert lines[2].startswith(
        "  every --batch up to 1048576 (the upper bound) fits: from 128 on the peak no longer "
        "grows, so the program may have no more data, "
    )


@pytest.mark.parametrize("at_the_end", ["does not fit", "unknown", "killed"])
def test_a_program_that_rounds_its_value_up(
    monkeypatch: pytest.MonkeyPatch, at_the_end: str
) -> None:
    def run(value: int) -> Result:
        if value < 1 << 20 and value <= 320:
            return of_size(GIB + -(-value // 64) * 64)
        if value < 1 << 20 or at_the_end == "does not fit":
            return run_of("does not fit", learned="size")
        if at_the_end == "killed":
            raise LostError(-9, [])
        return run_of("unknown")

    answer, lines = asked(monkeypatch, run)
    assert (answer["largest"], answer["unchanged_from"], answer["sure"]) == (320, None, True)
    assert (answer["lost_run"], answer["exit_status"]) == (None, 0)
    values = [each["value"] for each in answer["tries"]]
    assert len(values) == len(set(values))
    assert lines[2] == "  the largest --batch that fits is 320"


def test_a_signal_ends_the_look_at_the_upper_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(value: int) -> Result:
        ended = run_of("unknown") | {"partial": "interrupted", "exit_status": 130}
        return ended if value == 1 << 20 else of_size(GIB)

    answer, lines = asked(monkeypatch, run)
    assert (answer["largest"], answer["exit_status"]) == (None, 130)
    assert "--batch = 1048576 was ended (interrupted)" in lines[2]


def test_a_peak_elsewhere_is_no_reason_to_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as in the optimizer's step: the sum of all allocations grows."""

    def run(value: int) -> Result:
        result = of_size(GIB if value < 64 else value * GIB // 64)
        result["devices"][0]["allocated_bytes"] = value
        return result if value < 512 else run_of("does not fit", learned="size")

    answer, lines = asked(monkeypatch, run)
    assert (answer["largest"], answer["unchanged_from"]) == (511, None)
    assert lines[2] == "  the largest --batch that fits is 511"


@pytest.mark.parametrize("partial", ["time limit", ""])
def test_a_run_with_all_rows_that_ended_early_is_named(
    monkeypatch: pytest.MonkeyPatch, partial: str
) -> None:
    ended = {"partial": partial, "seconds": 60.0, "ended_at": "train.py:9", "error": ""}
    most = of_size(2 * GIB, "unknown", **ended)

    def run(value: int) -> Result:
        first = run_of("fits as far as known", learned="size", most=most)
        return first if value <= 5 else run_of("does not fit", learned="size")

    answer, lines = asked(monkeypatch, run)
    assert (answer["largest"], answer["sure"]) == (5, False)
    text = "\n".join(lines)
    assert "ended early, 2.00 GiB in use until then" in text
    assert "  with as many rows as possible it ended early, with 2.00 GiB in use" in text


def test_a_next_value_that_is_not_known_to_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(value: int) -> Result:
        too_much = run_of("does not fit", learned="integer")
        return of_size(GIB + value) if value <= 5 else too_much

    answer, lines = asked(monkeypatch, run)
    assert (answer["largest"], answer["sure"], answer["exit_status"]) == (5, False, 0)
    assert lines[2] == "  the largest --batch that fits as far as known is 5"
    assert "  so it may have taken another way than on a card, where it may need less" in "".join(
        lines
    )


def test_a_lowest_value_that_does_not_fit_as_far_as_known(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, lines = asked(monkeypatch, lambda value: run_of("does not fit", learned="integer"))
    assert (answer["largest"], answer["sure"], answer["exit_status"]) == (None, False, 12)
    assert lines[2] == "  it does not fit as far as known even with --batch = 1"
    assert any("does not fit as far as known" in line for line in lines[3:])


@pytest.mark.parametrize("status", [-9, 7])
def test_a_run_that_was_killed_keeps_the_others(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    def run(value: int) -> Result:
        if value > 16:
            raise LostError(status, ["the last line"])
        return of_size(GIB + value)

    answer, lines = asked(monkeypatch, run)
    assert (answer["exit_status"], [each["value"] for each in answer["tries"]]) == (1, [4, 8, 16])
    assert answer["lost_run"] == {"value": 32, "status": status, "stderr": ["the last line"]}
    assert lines[2] == (
        f"  the run with --batch = 32 {ending(status)}; the largest that fitted before is 16"
    )
    assert lines[-1] == "    the last line"


def test_a_program_that_fails_with_a_value_keeps_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(value: int) -> Result:
        failed = run_of("unknown") | {"exit_status": 1, "program_status": 1, "stderr": ["Error"]}
        return failed if value > 16 else of_size(GIB + value)

    answer, lines = asked(monkeypatch, run)
    assert answer["exit_status"] == 1
    assert lines[2] == (
        "  the program failed with --batch = 32; the largest that fitted before is 16"
    )


def test_a_program_without_a_gpu_has_no_largest_value(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, lines = asked(monkeypatch, lambda value: of_size(0, gpu_used=False))
    assert (answer["largest"], len(answer["tries"])) == (None, 1)
    assert lines[2].startswith("  no memory of a GPU was used, so this says nothing about a GPU. ")


def test_the_largest_value_leaves_little(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(value: int) -> Result:
        tight = of_size(GIB + value, tight=value > 4)
        return tight if value <= 5 else run_of("does not fit", learned="size")

    _, lines = asked(monkeypatch, run)
    assert lines[-1].startswith("  less than 2 % is left, and a real card may differ by as much")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["t.py"],
            r"\(it has none with a number\), and the environment has no variable BATCH_SIZE",
        ),
        (["-m", "t"], "as in -m t --batch-size 8, or set BATCH_SIZE=8"),
        (["t.py", "--batch-size", "8k"], "the program's --batch-size 8k is no whole number"),
        (["t.py", "--train_batch_size=1.5"], "the program's --train_batch_size=1.5 is no whole"),
        (["t.py", "--batch-size"], "the program's --batch-size is no whole number"),
    ],
)
def test_a_value_that_is_not_found(words: list[str], said: str) -> None:
    name = "size" if "train" in words[-1] else "batch-size"
    with pytest.raises(FerroError, match=said):
        _runs.find_place(_runs.Question.parse(name), words)


def test_a_variable_of_a_name_with_a_hyphen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal asks for this variable."""
    monkeypatch.setenv("NUM_ENVS", "8")
    place = _runs.find_place(_runs.Question.parse("num-envs"), ["t.py"])
    assert (place.name, place.value) == ("NUM_ENVS", 8)


DATA = """\
import sys, torch
batch = int(sys.argv[2])
data = torch.zeros(20, 1 << 20)
for i in range(0, 20, batch):
    part = data[i : i + batch].cuda()  # the part before is freed after it
"""


def test_the_sum_of_allocations_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(_runs, "execute", fork_run)
    script = tmp_path / "train.py"
    script.write_text(DATA)
    child = _runs.Child(["--memory=2g"], [str(script), "--batch", "8"])
    answer = _runs.what_if(child, QUESTION)
    assert (answer["largest"], answer["unchanged_from"]) == (1 << 20, 16)
    sums = [each["devices"][0]["allocated_bytes"] for each in answer["tries"]]
    assert sums == 5 * [20 << 22]
