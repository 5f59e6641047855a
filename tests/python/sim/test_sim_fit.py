"""The command as a user runs it: verdicts, peaks, kinds, lines, and what would fit."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ferro_alloc.__main__ import main
from ferro_alloc._status import size_text
from ferro_alloc.fit import _runs
from ferro_alloc.fit._report import WENT_ON
from ferro_alloc.sim.cards import LIBRARIES, find_card
from tests.python.commands import command, fork_run
from tests.python.sim import fit_programs as programs
from tests.python.sim.conftest import Result, Simulate

MIB, GIB = 1 << 20, 1 << 30
ALLOCATORS = ("native", "expandable", "ferro_alloc")
BRIEF = ("native", pytest.param("expandable", marks=pytest.mark.long), "ferro_alloc")
H100_TAKES = find_card("h100").context + LIBRARIES


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (102, "102 B"),
        (512, "512 B"),
        (1 << 10, "1.00 KiB"),
        (3 * MIB // 100, "30.72 KiB"),
        (MIB // 10, "0.10 MiB"),
        (GIB // 100, "10.24 MiB"),
        (GIB // 8, "0.12 GiB"),
        (11 * GIB // 10, "1.10 GiB"),
        (1 << 40, "1024.00 GiB"),
        (-GIB // 50, "-20.48 MiB"),
    ],
)
def test_sizes_keep_two_figures(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize("options", [(), ("--compare",), ("--what-if", "count=1..2")])
def test_no_report_rounds_memory_to_zero(
    options: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nx = torch.ones(1 << 18, device='cuda')\ny = x[:9] + 1\n")
    if not options:
        said = command("simulate", "--memory", "2g", str(script), "count=1").stderr
    else:
        monkeypatch.setattr(_runs, "execute", fork_run)
        assert main(["simulate", *options, "--memory", "2g", str(script), "count=1"]) == 0
        said = capsys.readouterr().err
    assert "0.00 " not in said
    if "--what-if" not in options:
        assert "2.00 MiB" in said


def test_a_process_without_a_gpu_says_so(simulate: Simulate) -> None:
    done, _ = simulate("import torch\nprint(torch.ones(3).sum().item())")
    assert "\n  no memory of a GPU was used, so this says nothing about a GPU. With " in done.stderr
    done, _ = simulate("import torch\ntorch.ones(3, device='cuda')")
    assert "no memory of a GPU" not in done.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--gpu", "rtx-3060"), "--gpu rtx-3060"),
        (("--gpu=RTX 4090",), "--gpu RTX 4090"),
        (("--allocator", "native"), "--allocator native"),
        (("--batch", "3", "--what-if", "batch"), "--what-if"),
        (("--gpu", "0"), ""),
        (("--gpu",), ""),
        (("--allocator", "pool", "--memory", "3"), ""),
    ],
)
def test_an_option_behind_the_program_is_noticed(
    simulate: Simulate, words: tuple[str, ...], named: str
) -> None:
    done, _ = simulate("import sys\nprint(sys.argv[1:])", arguments=words)
    assert done.stdout == f"{list(words)}\n"
    said = f"ferro_alloc: {named} stands behind the program, so the program gets it"
    assert (said in done.stderr) if named else ("behind the program" not in done.stderr)


PARSES = """\
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=1)
parser.parse_args()
x = torch.ones(9, device="cuda")
"""
IGNORES = "import torch\nx = torch.ones(9, device='cuda')\n"
LOOKS = f"import os, sys\nos.chdir('/')\nprint(sys.argv[1:])\n{IGNORES}"


@pytest.mark.parametrize(
    ("program", "words", "named"),
    [
        (PARSES, ("--batch", "2", "--compare"), ("--compare",)),
        (PARSES, ("--seed", "1", "--json=x.json"), ("--seed 1", "--json x.json")),
        (PARSES, ("--time-limit", "9", "--verbose"), ("--time-limit 9",)),
        (PARSES, ("--batch", "2"), ()),
        (PARSES, ("--batch",), ()),
        (PARSES.replace("--batch", "--report"), ("--report", "x.html"), ()),
        (PARSES.replace("--batch", "--no-values"), ("--no-values=3",), ()),
        (PARSES.replace("parse_args", "parse_known_args"), ("--memory", "9g"), ("--memory 9g",)),
        (IGNORES, ("--compare", "--report", "x.html"), ("--compare", "--report x.html")),
        (f"# to compare\n{IGNORES}", ("--compare",), ("--compare",)),
        (IGNORES, ("--seed", "1", "--gpu", "0", "--report", "text"), ()),
        (LOOKS, ("--rows", "all"), ("--rows all",)),
        (f"from options import *\n{IGNORES}", ("--rows", "all"), ()),
    ],
)
def test_the_report_names_options_that_the_program_refused_or_ignored(
    simulate: Simulate,
    tmp_path: Path,
    program: str,
    words: tuple[str, ...],
    named: tuple[str, ...],
) -> None:
    (tmp_path / "options.py").write_text("import sys\nrows = '--rows' in sys.argv\n")
    done, result = simulate(program, arguments=words)
    assert tuple(result["misplaced"]) == named, done.stderr
    said = f"  {', '.join(named)} stand{'s' if len(named) == 1 else ''} behind the program, which "
    assert (said in done.stderr) if named else ("behind the program" not in done.stderr)


def test_a_program_may_have_an_option_of_the_same_name_and_value(simulate: Simulate) -> None:
    program = PARSES.replace('"--batch", type=int, default=1', '"--gpu"')
    done, result = simulate(program, arguments=("--gpu", "h100"))
    assert "behind the program" not in done.stderr
    assert result["misplaced"] == []


@pytest.mark.parametrize("options", [("--compare",), ("--what-if", "batch")])
def test_tables_name_options_that_the_program_ignored(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    options: tuple[str, ...],
) -> None:
    monkeypatch.setattr(_runs, "execute", fork_run)
    (tmp_path / "train.py").write_text(IGNORES)
    main(["simulate", *options, str(tmp_path / "train.py"), "batch=1", "--memory", "24g"])
    said = capsys.readouterr().err
    assert "  --memory 24g stands behind the program, which does not use it: options" in said


def gib_of(result: Result, kind: str) -> float:
    return float(result["devices"][0]["kinds"].get(kind, 0)) / GIB


@pytest.mark.parametrize("allocator", BRIEF)
def test_training_fits_with_the_allocators_own_peaks(simulate: Simulate, allocator: str) -> None:
    done, result = simulate(programs.TRAIN, "--allocator", allocator)
    assert done.returncode == 0, done.stderr
    (device,) = result["devices"]
    allocated, reserved = map(int, done.stdout.split())
    assert (device["peak_allocated_bytes"], device["peak_reserved_bytes"]) == (allocated, reserved)
    assert (result["verdict"], result["allocator"]) == ("fits", allocator)
    # The card's memory is the sum of context and libraries, the reserved memory, and the rest.
    capacity = result["card"]["memory_bytes"]
    assert capacity == find_card("h100").memory
    assert 0 <= device["peak_in_use_bytes"] - H100_TAKES - reserved < 4 * MIB
    assert device["spare_bytes"] == capacity - device["peak_in_use_bytes"]
    # 8 layers of 1024 x 1025 floats, and twice that for AdamW.
    parameters = 8 * (1024 * 1024 + 1024) * 4
    kinds = device["kinds"]
    assert kinds["parameters"] == parameters
    assert 2 * parameters <= kinds["optimizer"] <= 2 * parameters + 16 * 512
    assert kinds["activations"] + kinds.get("temporaries", 0) > 0
    assert sum(kinds.values()) <= allocated
    lines = {(Path(line["file"]).name, line["line"]) for line in device["lines"]}
    assert ("train.py", 6) in lines  # the model
    assert f"allocator {allocator}" in done.stderr
    assert "FITS, with" in done.stderr


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_resets_do_not_change_the_peaks_of_the_run(simulate: Simulate, allocator: str) -> None:
    done, result = simulate(programs.RESETS, "--gpu", "rtx4090", "--allocator", allocator)
    assert done.returncode == 0, done.stderr
    allocated, reserved = map(int, done.stdout.split())
    assert allocated == 3 * GIB
    (device,) = result["devices"]
    assert (device["peak_allocated_bytes"], device["peak_reserved_bytes"]) == (allocated, reserved)


def test_memory_is_the_cards_and_deductions_are_reported(simulate: Simulate) -> None:
    done, result = simulate(programs.RESETS, "--memory", "24GiB")
    assert result["card"]["memory_bytes"] == 24 * GIB
    assert 21 * GIB - H100_TAKES - 4 * MIB <= result["devices"][0]["spare_bytes"] <= 21 * GIB
    assert "CUDA context (measured)" in done.stderr
    assert result["card"]["context_bytes"] == 648871936


def test_memory_of_a_convolutional_network_is_split_by_kind(simulate: Simulate) -> None:
    _, result = simulate(programs.CONVOLUTIONS)
    kinds = result["devices"][0]["kinds"]
    # Two outputs of 8 x 64 images of 126 x 126 and less, six times.
    assert kinds["activations"] > 5 * 2 * 8 * 64 * 116 * 116 * 4
    assert kinds["buffers"] == 6 * 3 * 512
    assert kinds["parameters"] < kinds["activations"]


def test_an_out_of_memory_run_has_a_cause_and_no_margin(simulate: Simulate) -> None:
    done, result = simulate(programs.RUNS_OUT_IN_FORWARD, "--memory", "4g")
    assert done.returncode == 12
    assert (result["verdict"], result["program_status"]) == ("does not fit", 1)
    failure = result["out_of_memory"]
    output = 16384 * 2048 * 4
    assert failure["requested_bytes"] == output
    assert failure["device_free_bytes"] < output
    assert (Path(failure["file"]).name, failure["line"]) == ("train.py", 6)
    # Autograd keeps an input to each layer so far; the last output may have any kind.
    assert failure["kinds"]["activations"] % output == 0
    assert failure["kinds"]["activations"] >= 12 * output
    assert failure["kinds"]["parameters"] == 64 * (2048 * 2048 + 2048) * 4
    assert failure["kinds"].get("temporaries", 0) == 0
    assert sum(failure["kinds"].values()) <= failure["allocated_bytes"]
    assert "DOES NOT FIT: short by at least" in done.stderr
    assert "asked for 0.12 GiB at" in done.stderr
    assert "to spare" not in done.stderr


def test_a_program_that_catches_it_is_reported_to_continue(simulate: Simulate) -> None:
    done, result = simulate(programs.CATCHES, "--memory", "4GB")
    assert done.returncode == 12
    assert done.stdout == "ended with 16\n"
    assert (result["program_status"], result["went_on"]) == (0, True)
    assert result["out_of_memory"]["count"] == 2
    assert "caught it (2 x) and went on" in done.stderr
    assert f"went on to its end\n  {WENT_ON}\n" in done.stderr


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("arguments", [(), ("--train",)], ids=["forward", "backward"])
def test_a_convolution_that_does_without_its_workspace_fits(
    simulate: Simulate, allocator: str, arguments: tuple[str, ...]
) -> None:
    done, result = simulate(
        programs.CONVOLVES, "--memory", "826MiB", "--allocator", allocator, arguments=arguments
    )
    assert (done.returncode, result["verdict"], result["went_on"]) == (0, "fits", False)
    assert done.stdout == "1 64 256 256\n"
    assert result["other_engines"] == 1 + len(arguments)
    assert result["out_of_memory"] is None
    times = "2 times" if arguments else "once"
    assert f"cuDNN took another algorithm for lack of memory, {times}" in done.stderr


def test_a_later_request_that_fails_does_not_fit(simulate: Simulate) -> None:
    done, result = simulate(programs.CONVOLVES, "--memory", "826MiB", arguments=("--more",))
    assert (done.returncode, result["verdict"]) == (12, "does not fit")
    assert (result["out_of_memory"]["count"], result["other_engines"]) == (1, 1)
    assert result["out_of_memory"]["requested_bytes"] == 64 * MIB


def test_a_convolution_whose_result_has_no_room_does_not_fit(simulate: Simulate) -> None:
    _, result = simulate(programs.CONVOLVES, "--memory", "796MiB")
    assert (result["verdict"], result["other_engines"]) == ("does not fit", 0)


def test_the_largest_batch_may_do_without_workspaces(simulate: Simulate) -> None:
    _, result = simulate(
        programs.CONVOLVES, "--what-if", "batch=1..2", "--memory", "826MiB",
        arguments=("--batch", "1"),
    )  # fmt: skip
    assert result["largest"] == 1


def test_a_request_of_the_backward_pass_has_the_line_that_began_it(simulate: Simulate) -> None:
    done, result = simulate(programs.RUNS_OUT_IN_BACKWARD, "--memory", "2000MiB")
    failure = result["out_of_memory"]
    assert (Path(failure["file"]).name, failure["line"]) == ("train.py", 6)
    assert "train.py:6, while the card had" in done.stderr


def test_the_program_is_not_disturbed_and_its_status_is_kept(simulate: Simulate) -> None:
    done, result = simulate(programs.MANY_PARTS)
    assert done.returncode == 5, done.stderr
    assert (result["verdict"], result["program_status"]) == ("unknown", 5)
    assert result["devices"][0]["kinds"]["parameters"] == 6 * (1024 * 1024 + 1024) * 4
    assert "ended with status 5" in done.stderr


def test_a_kv_cache_is_known_by_the_librarys_own_objects(
    simulate: Simulate, tmp_path: Path
) -> None:
    package = tmp_path / "transformers"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "cache_utils.py").write_text(programs.CACHE_UTILS)
    _, result = simulate(programs.GENERATES)
    one = 4 * 64 * 1024 * 128 * 4
    # Keys and values of eight steps; while the last values are computed, those of seven steps stay.
    assert gib_of(result, "kv_cache") * GIB >= (8 + 8) * one
    assert gib_of(result, "other") * GIB <= one


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_memory_at_the_peak_by_tag(simulate: Simulate, allocator: str) -> None:
    done, result = simulate(programs.TAGGED, "--memory", "4GiB", "--allocator", allocator)
    (device,) = result["devices"]
    tags = {"model": 1 << 30, "kv cache": 512 * MIB}
    assert device["tags"] == result["out_of_memory"]["tags"] == tags
    rows = [line.split() for line in done.stderr.splitlines()]
    assert ["model", "1.00", "GiB", "62", "%"] in rows
    assert ["(no", "tag)", "0.12", "GiB", "8", "%"] in rows


def test_memory_of_graphs_is_a_kind(simulate: Simulate) -> None:
    _, result = simulate(programs.GRAPHS)
    assert gib_of(result, "graphs") == 0.25


VALUES = """\
import torch
three = torch.full((8,), 3, device="cuda")
print((three + 1).tolist())
"""


@pytest.mark.parametrize(
    ("options", "printed"), [((), 4), (("--values",), 4), (("--no-values",), 0)]
)
def test_values_are_a_choice(simulate: Simulate, options: tuple[str, ...], printed: int) -> None:
    done, _ = simulate(VALUES, *options)
    assert done.stdout == f"{8 * [printed]}\n"


@pytest.mark.long
def test_children_have_the_choice_of_values(simulate: Simulate) -> None:
    program = f"{VALUES}assert three.sum().item() == 0"
    _, result = simulate(program, "--compare", "--no-values")
    assert [run["verdict"] for run in result["runs"]] == 3 * ["fits as far as known"]


def test_values_without_memory_that_keeps_them_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(VALUES)
    done = command("simulate", "--no-backing", "--values", str(script))
    assert done.returncode == 2
    assert "leave out --values or --no-backing" in done.stderr


def test_json_goes_to_stdout_behind_the_programs_own(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(programs.RESETS)
    done = command("simulate", "--gpu", "RTX 4090", "--json", "-", str(script))
    own, result = done.stdout.splitlines()
    assert own == f"{3 * GIB} {3 * GIB}"
    assert json.loads(result)["card"]["key"] == "rtx-4090"


def assert_that_three_fit(result: Result, said: str) -> None:
    assert [run["allocator"] for run in result["runs"]] == list(ALLOCATORS)
    assert "it fits under native, expandable, ferro_alloc" in said
    peaks = [run["devices"][0]["peak_reserved_bytes"] for run in result["runs"]]
    assert peaks[2] <= peaks[0]


def test_three_allocators_in_one_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, found = tmp_path / "train.py", tmp_path / "result.json"
    script.write_text(programs.TRAIN)
    monkeypatch.setattr(_runs, "execute", fork_run)
    words = ["simulate", "--compare", "--memory", "2g", "--json", str(found), str(script)]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert_that_three_fit(json.loads(found.read_text()), printed.err)


@pytest.mark.long
def test_three_allocators_in_new_interpreters(simulate: Simulate) -> None:
    done, result = simulate(programs.TRAIN, "--compare", "--memory", "2g")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert_that_three_fit(result, done.stderr)


def test_what_does_not_fit_is_run_again_to_learn_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, found = tmp_path / "train.py", tmp_path / "result.json"
    script.write_text(programs.RESETS)
    monkeypatch.setattr(_runs, "execute", fork_run)
    words = ["simulate", "--compare", "--memory", "3g", "--json", str(found), str(script)]
    assert main(words) == 12
    result = json.loads(found.read_text())
    needs = [run["needs_bytes"] for run in result["runs"]]
    # Expandable segments grow by 20 MiB.
    assert all(0 <= need - 3 * GIB - H100_TAKES <= 24 * MIB for need in needs)
    assert "it fits under none of them" in capsys.readouterr().err


FINDS = """\
import torch
LIMIT
for size in (1, 8):
    try:
        torch.empty(size << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        print("does not fit")
"""


@pytest.mark.parametrize(
    ("limit", "where"),
    [("", ""), ("torch.cuda.set_per_process_memory_fraction(0.5)", " in its own limit")],
)
def test_a_table_says_which_programs_caught_their_errors(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    limit: str,
    where: str,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(FINDS.replace("LIMIT", limit))
    monkeypatch.setattr(_runs, "execute", fork_run)
    assert main(["simulate", "--compare", "--memory", "6g", str(script)]) == 12
    said = capsys.readouterr().err
    assert (
        f"  it fits under none of them\n  it ran out of memory{where}, caught the error and went "
        "on to its end under native, expandable, ferro_alloc\n"
    ) in said
    assert f"\n  {WENT_ON}\n" in said or said.endswith(f"\n  {WENT_ON}\n")


SEARCHES = """\
import sys, torch
size = int(sys.argv[2])
while size > 1:
    try:
        torch.empty(size << 30, dtype=torch.uint8, device="cuda")
        break
    except torch.OutOfMemoryError:
        size //= 2
"""


def test_a_search_says_with_which_values_the_program_caught_its_errors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SEARCHES)
    monkeypatch.setattr(_runs, "execute", fork_run)
    words = ["--what-if", "size=1..16", "--memory", "6g", str(script), "--size", "8"]
    assert main(["simulate", *words]) == 0
    said = capsys.readouterr().err
    assert "the largest --size that fits is 5\n" in said
    assert re.search(r"\n +8 +does not fit .* caught it \(1 x\), went on\n", said), said
    line = "  it ran out of memory, caught the error and went on to its end with --size = 6, 8\n"
    assert f"{line}  {WENT_ON}\n" in said


@pytest.mark.long
def test_the_largest_batch_is_found_on_the_command_line(simulate: Simulate) -> None:
    done, result = simulate(
        programs.TRAIN, "--what-if", "batch=1..512", "--memory", "2g", arguments=("--batch", "4")
    )
    assert done.returncode == 0, done.stderr
    best = result["largest"]
    tried = {each["value"]: each["verdict"] for each in result["tries"]}
    assert (tried[best], tried[best + 1]) == ("fits", "does not fit")
    assert all((verdict == "fits") == (value <= best) for value, verdict in tried.items())
    assert f"the largest --batch that fits is {best}" in done.stderr


@pytest.mark.long
def test_the_largest_batch_is_found_in_the_environment(simulate: Simulate) -> None:
    options = ("--what-if", "batch_size=...", "--memory", "2g")
    done, result = simulate(programs.ENVIRONMENT, *options, env={"BATCH_SIZE": "3"})
    # One tensor of so many times 100 MiB.
    assert result["largest"] == (2 * GIB - H100_TAKES) // (100 * MIB), done.stderr


@pytest.mark.parametrize(("chosen", "policy"), [(None, "PASSIVE"), ("active", "ACTIVE")])
@pytest.mark.parametrize("options", [(), ("--compare", "--output", "native")])
def test_threads_of_openmp_do_not_spin(
    tmp_path: Path, chosen: str | None, policy: str, options: tuple[str, ...]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch")
    env = {"OMP_DISPLAY_ENV": "TRUE"} | ({"OMP_WAIT_POLICY": chosen} if chosen else {})
    done = command("simulate", *options, str(script), env=env, start_anew=True)
    assert done.returncode == 0, done.stderr
    # What OpenMP's library itself says when torch loads it.
    assert f"OMP_WAIT_POLICY = '{policy}'" in done.stderr
