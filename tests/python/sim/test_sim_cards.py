"""The table of cards, spellings of sizes, and the places of a varied value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ferro_alloc import FerroError
from ferro_alloc.fit._runs import Question, find_place, largest
from ferro_alloc.sim.cards import CARDS, find_card, parse_memory
from tests.conftest import RunProgram

pytestmark = pytest.mark.no_extension

PROPERTIES = """\
import json, os, sys
from ferro_alloc import sim
import ctypes

for key in sys.argv[1:]:
    if (child := os.fork()) == 0:
        sim.activate(gpu=key)
        import torch
        p = torch.cuda.get_device_properties(0)
        free, total = torch.cuda.mem_get_info()
        found = p.name, total, f"{p.major}.{p.minor}", p.multi_processor_count, total - free
        print(json.dumps([key, *found]), flush=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("H100", "h100"),
        ("rtx4090", "rtx-4090"),
        ("RTX 4090", "rtx-4090"),
        ("rtx-4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("A100", "a100-80"),
        ("a100 40GB", "a100-40"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("l40S", "l40s"),
        ("Tesla T4", "t4"),
        ("rtx 6000 ada", "rtx-6000-ada"),
    ],
)
def test_cards_are_found_by_common_spellings(name: str, key: str) -> None:
    assert find_card(name).key == key


def test_every_card_is_found_by_its_key_and_keys_are_unique() -> None:
    assert len(CARDS) >= 30
    assert [find_card(card.key) for card in CARDS] == list(CARDS)


def test_an_unknown_card_is_refused_with_the_nearest_and_the_list() -> None:
    with pytest.raises(FerroError, match=r"no card 'rtx4095'; the nearest: rtx-4090, .*l40s, h100"):
        find_card("rtx4095")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 << 30),
        ("24g", 24 << 30),
        ("24 gib", 24 << 30),
        ("24GB", 24 * 10**9),
        ("1.5T", 3 << 39),
        ("24576MiB", 24 << 30),
        ("25769803776b", 24 << 30),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["24", "", "g", "-1g", "24x", "24Gibi", "1e3g", "0g", "1k"])
def test_other_sizes_are_refused_with_the_forms(text: str) -> None:
    with pytest.raises(FerroError, match=r"expected 24GiB or 24g .* 24GB"):
        parse_memory(text)


@pytest.mark.long
def test_the_simulated_gpu_is_the_card_of_the_table(run_program: RunProgram) -> None:
    done = run_program(PROPERTIES, *(card.key for card in CARDS))
    found = [json.loads(line) for line in done.stdout.splitlines()]
    expected = [
        [
            *(card.key, card.name, card.memory, card.compute_capability),
            *(card.multiprocessors, card.context),
        ]
        for card in CARDS
    ]
    # The driver allocates memory in pages.
    for (*facts, context), (*wanted, of_table) in zip(found, expected, strict=True):
        assert facts == wanted
        assert 0 <= context - of_table < 4 << 20


@pytest.mark.parametrize(
    ("words", "name", "before", "after"),
    [
        (["t.py", "--batch", "8"], "batch", 8, ["t.py", "--batch", "9"]),
        (["t.py", "--batch=8"], "--batch", 8, ["t.py", "--batch=9"]),
        (["t.py", "train.batch=8"], "batch", 8, ["t.py", "train.batch=9"]),
        (
            ["t.py", "--per_device_train_batch_size", "8", "--epochs", "3"],
            *("batch", 8, ["t.py", "--per_device_train_batch_size", "9", "--epochs", "3"]),
        ),
        (["t.py", "--batch-size", "8"], "batch_size", 8, ["t.py", "--batch-size", "9"]),
    ],
)
def test_a_value_is_found_on_the_command_line(
    words: list[str], name: str, before: int, after: list[str]
) -> None:
    place = find_place(Question.parse(name), words)
    assert place.value == before
    assert place.put(words, 9) == after


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["t.py", "--seed", "1"], r"whole number \(its arguments with numbers are --seed\)"),
        (["t.py", "--eval_batch", "1", "--train_batch", "2"], "several such numbers"),
    ],
)
def test_an_ambiguous_command_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(FerroError, match=said):
        find_place(Question.parse("batch"), words)


@pytest.mark.parametrize("text", ["", "batch=8", "batch=8..4", "batch=0..4", "=1..2", "batch=a..b"])
def test_a_question_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(FerroError, match="--what-if"):
        Question.parse(text)


@pytest.mark.parametrize("best", [0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 99, 100])
@pytest.mark.parametrize("first", [1, 8, 100])
def test_bisection_finds_the_largest(best: int, first: int) -> None:
    tried: list[int] = []

    def fits(value: int) -> bool:
        tried.append(value)
        return value <= best

    assert largest(Question("batch", 1, 100), first, fits) == (best or None)
    assert len(tried) == len(set(tried)) <= 14
    assert all(1 <= value <= 100 for value in tried)


def test_the_command_refuses_what_it_does_not_know(run_program: RunProgram, tmp_path: Path) -> None:
    script = tmp_path / "t.py"
    script.touch()
    source = "import sys\nfrom ferro_alloc.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"
    for options, said in (
        (("--memory", "24"), "expected 24GiB or 24g"),
        (("--gpu", "abacus"), "there is no card 'abacus'"),
        (("--memory", "512MiB"), "context and libraries take 0.75 GiB: expected more memory"),
        (("--what-if", "batch"), "no argument of the program has this name and a whole number"),
    ):
        done = run_program(source, "simulate", *options, str(script), check=False)
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr
        assert "Traceback" not in done.stderr
