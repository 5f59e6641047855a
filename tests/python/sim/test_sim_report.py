"""What a new user reads first: the verdict's line, refusals, and what is left out of the report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ferro_alloc import _variable
from ferro_alloc.fit import _range, _report, _runs
from ferro_alloc.fit._lost import LostError, ending
from tests.python.commands import command
from tests.python.sim.conftest import Simulate
from tests.python.sim.test_sim_certainty import run_of
from tests.python.sim.test_sim_rows import ASKS, UNKNOWN
from tests.python.sim.test_sim_rows import SPLITS as SPLITS_ROWS

MIB = 1 << 20
UNUSED = "no memory of a GPU was used, so this says nothing about a GPU"


def verdict_of(said: str) -> str:
    """The line below the last title."""
    lines = said.splitlines()
    title = max(i for i, line in enumerate(lines) if line.startswith("simulated "))
    return lines[title + 1]


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("", 0, f'{UNUSED}. With .to("cuda") a program uses one; with torchrun, simulate '),
        ("import torch\ntorch.ones(3).sum()", 0, f"{UNUSED}. With "),
        ("import sys; sys.exit(3)", 3, f"{UNUSED}: it ended with status 3"),
        (
            "import torch\n1 / 0",
            1,
            f"{UNUSED}: it ended with status 1 (ZeroDivisionError at train.py:2)",
        ),
    ],
)
def test_a_program_that_used_no_gpu_has_no_verdict(
    simulate: Simulate, program: str, status: int, said: str
) -> None:
    done, result = simulate(program)
    assert (done.returncode, result["gpu_used"]) == (status, False)
    assert verdict_of(done.stderr).startswith(f"  {said}")
    assert "FITS" not in done.stderr
    assert "memory of the card" not in done.stderr
    assert "calls that are not simulated" not in done.stderr


@pytest.mark.parametrize(("options", "title"), [((), ""), (("--compare",), "allocator ")])
def test_a_comparison_without_a_gpu_says_so(
    simulate: Simulate, options: tuple[str, ...], title: str
) -> None:
    done, _ = simulate("", *options)
    assert verdict_of(done.stderr).startswith(f"  {UNUSED}. With ")
    assert "it fits under" not in done.stderr


def test_the_exception_that_ended_the_program_is_in_the_verdict(simulate: Simulate) -> None:
    program = "import torch\nx = torch.ones(3, device='cuda')\nx + torch.ones(4, device='cuda')"
    done, _ = simulate(program)
    assert verdict_of(done.stderr).startswith("  FITS as far as it ran, with ")
    assert verdict_of(done.stderr).endswith(": it ended with status 1 (RuntimeError at train.py:3)")


def test_a_program_that_barely_fits(simulate: Simulate) -> None:
    program = "import torch\nx = torch.empty(1 << 30, dtype=torch.uint8, device='cuda')"
    done, result = simulate(program, "--memory", "1810MiB")
    assert (done.returncode, result["verdict"], result["tight"]) == (0, "fits", True)
    assert verdict_of(done.stderr) == "  FITS, with only 15.19 MiB to spare (0.8 %)"
    assert (
        "\n  less than 2 % is left, and a real card may differ by as much from the " in done.stderr
    )
    done, result = simulate(program, "--memory", "2g")
    assert result["tight"] is False
    assert "is left" not in done.stderr


@pytest.mark.parametrize(
    ("verdict", "learned", "sure"),
    [("does not fit", "size", True), ("does not fit", "integer", False), ("fits", "float", True)],
)
def test_how_sure_a_verdict_is(simulate: Simulate, verdict: str, learned: str, sure: bool) -> None:
    programs = {
        "size": "import torch\ntorch.empty(4 << 30, device='cuda')",
        "integer": f"{UNKNOWN}\nif int(score.sum()) < 9: torch.empty(4 << 30, device='cuda')",
        "float": "import torch\ntorch.empty(4, device='cuda')",
    }
    _, result = simulate(programs[learned], "--memory", "2g")
    assert (result["verdict"], result["sure"]) == (verdict, sure)


def test_the_range_of_rows_is_in_the_verdicts_line(simulate: Simulate) -> None:
    done, _ = simulate(SPLITS_ROWS.replace("COMPARED", "< 2"))
    said = verdict_of(done.stderr)
    assert said.startswith("  FITS AS FAR AS KNOWN, with ")
    assert said.endswith(" GiB with the fewest rows")
    done, _ = simulate(ASKS, "--memory", "1g")
    assert verdict_of(done.stderr).endswith("; it DOES NOT FIT with all rows")
    done, _ = simulate(SPLITS_ROWS.replace("COMPARED", "< 2"), "--memory", "1400m")
    assert verdict_of(done.stderr).endswith("; it FITS with the fewest rows")
    done, _ = simulate(f"{ASKS}    raise ValueError")
    assert verdict_of(done.stderr).endswith("; not known with all rows")


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("__import__('ctypes').CDLL(None)._exit(7)", "the run ended with status 7"),
        ("os.kill(os.getpid(), 9)", "the run was killed by SIGKILL (out of host memory?)"),
    ],
)
def test_a_further_run_that_was_killed_is_in_the_report(
    simulate: Simulate, end: str, said: str
) -> None:
    program = f"{UNKNOWN}\nimport os, sys\nif (score > 0).any():\n    print('x', file=sys.stderr)"
    done, result = simulate(f"{program}\n    {end}")
    assert (done.returncode, result["all_rows"]) == (13, None)
    (lost,) = result["lost_runs"]
    assert (lost["rows"], lost["stderr"][-1]) == ("all", "x")
    assert ending(lost["status"]) in said
    assert verdict_of(done.stderr).endswith("; not known with all rows")
    assert f"\n  with as many rows as possible {said}\n" in done.stderr


def test_a_run_with_rows_alone_that_was_killed_leaves_the_one_before() -> None:
    early = run_of("unknown", learned="size") | {"seconds": 1.0, "error": "", "ended_at": ""}
    first = run_of("fits as far as known", learned="size") | {"seconds": 1.0}

    def run(*options: str) -> dict[str, object]:
        if "--rows-alone" in options:
            raise LostError(-11, [])
        return early

    _range.add_range(run, first, None, lambda text: None)
    assert (first["all_rows"], first["lost_runs"][0]["rows"]) == (early, "all-alone")
    assert _report.range_of(first) == [
        "  with as many rows as possible, and masks as of zeros, the run was killed by SIGSEGV",
        "  with as many rows as possible it ended early, with 1.00 GiB in use until then "
        "(status 0)",
    ]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--count", "0", "FILE"], 1, "the number of cards is 0: expected 1 to 16"),
        (["--count", "17", "FILE"], 1, "the number of cards is 17: expected 1 to 16"),
        (["--memroy", "24g", "FILE"], 2, "no option --memroy: did you mean --memory? Options of"),
        (["--gpus=h100", "FILE"], 2, "there is no option --gpus: did you mean --gpu? Options of"),
        (["--xyzzy", "FILE"], 2, "there is no option --xyzzy; --help lists all. Options of the"),
        (["--gpu", "rtx4091", "FILE"], 1, "there is no card 'rtx4091'; the nearest: rtx-4090"),
        (["-m", "nomodule"], 2, "there is no module 'nomodule' in the path of "),
        (["-m", "json"], 1, "the program cannot be started: No module named json.__main__"),
        (["FOLDER"], 1, "the program cannot be started: can't find '__main__' module in"),
    ],
)
def test_refusals(tmp_path: Path, words: list[str], status: int, said: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("1\n")
    places = {"FILE": str(script), "FOLDER": str(tmp_path)}
    done = command("simulate", *(places.get(word, word) for word in words))
    assert (done.returncode, done.stdout) == (status, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "simulated " not in done.stderr.replace(said, "")


def test_an_import_that_fails_in_the_program_is_the_programs(simulate: Simulate) -> None:
    done, result = simulate("import runpy\nrunpy.run_module('nomodule')")
    assert (done.returncode, result["program_status"]) == (1, 1)
    assert done.stderr.startswith("Traceback (most recent call last):\n")


READS_INPUT = "import torch\nx = torch.zeros(int(input()), 1 << 20, device='cuda')\n"


@pytest.mark.parametrize("is_file", [True, False])
def test_runs_read_a_file_from_its_beginning(tmp_path: Path, is_file: bool) -> None:
    script, given = tmp_path / "train.py", tmp_path / "input.txt"
    script.write_text(READS_INPUT)
    given.write_text("5\n")
    command = f"{sys.executable} -m ferro_alloc simulate --compare {script}"
    shell = f"{command} < {given}" if is_file else f"echo 5 | {command}"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True)
    assert done.returncode == (0 if is_file else 1)
    assert ("it fits under native, expandable, ferro_alloc" in done.stderr) == is_file
    assert ("simulate ... train.py < file" in done.stderr) != is_file
    assert not done.stderr.endswith("\n\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [((), ", native: FITS, with "), (("--compare",), ": it fits under native, expandable, ferro")],
)
def test_the_page_begins_with_the_verdict(
    simulate: Simulate, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    page = tmp_path / "page.html"
    program = "import torch\ntorch.empty(4, device='cuda')"
    done, _ = simulate(program, "--report", str(page), *options)
    title = page.read_text().partition("<h1>")[2]
    assert title.startswith(f"train.py on a simulated NVIDIA H100 80GB HBM3{said}"), done.stderr


TWO = """\
import torch
x = torch.zeros(1 << 28, device="cuda:0")
y = torch.zeros(1 << 30, device="cuda:1")
"""


def test_the_fullest_of_several_devices_is_named(simulate: Simulate) -> None:
    done, _ = simulate(TWO, "--count", "2")
    assert verdict_of(done.stderr).endswith(" GiB to spare (94 %) on device 1")
    done, _ = simulate(TWO, "--count", "2", "--memory", "4g")
    assert "train.py:3, while device 1 had 3.25 GiB free" in done.stderr
    done, _ = simulate(TWO)
    assert verdict_of(done.stderr).endswith(
        ": it ended with status 1 (AcceleratorError at train.py:3); --count gives it more cards"
    )


def test_a_device_without_memory_in_use_takes_one_line(simulate: Simulate) -> None:
    done, _ = simulate(TWO.replace("cuda:0", "cpu"), "--count", "2")
    assert "\n  device 0: not used\n\n  device 1\n  memory of the card " in done.stderr
    assert done.stderr.count("memory of the card") == 1


SEVERAL_KINDS = """\
import torch
model = torch.nn.Linear(1024, 1024, device="cuda"); x = torch.ones(512, 1024, device="cuda")
model(x).sum().backward()
"""


def test_a_line_names_the_kinds_of_its_memory(simulate: Simulate) -> None:
    done, result = simulate(SEVERAL_KINDS)
    (line,) = (each for each in result["devices"][0]["lines"] if each["line"] == 2)
    assert list(line["kinds"])[:2] == ["parameters", "activations"], line
    assert "train.py:2 <module> " in done.stderr
    (said,) = (text for text in done.stderr.splitlines() if "train.py:2 <module> " in text)
    assert said.endswith(" parameters, activations")


@pytest.mark.parametrize(
    ("options", "program"),
    [
        ((), ()),
        (("--compare",), ()),
        (("--what-if", "batch=1..1"), ("--batch", "1")),
    ],
)
def test_a_memory_that_was_set_is_in_the_title(
    simulate: Simulate, options: tuple[str, ...], program: tuple[str, ...]
) -> None:
    done, _ = simulate(
        "import torch\ntorch.ones(4, device='cuda')",
        *("--memory", "2g", *options),
        arguments=program,
    )
    assert "simulated NVIDIA H100 80GB HBM3, 2.00 GiB (set)" in done.stderr


def test_other_rows_that_change_nothing_take_no_line(simulate: Simulate) -> None:
    program = f"{UNKNOWN}\nif (score > 0).any():\n    torch.ones(4).sum()"
    done, _ = simulate(program)
    assert verdict_of(done.stderr).endswith("; the same with all rows")
    assert "with as many rows as possible" not in done.stderr
    other = run_of("fits as far as known")
    both = run_of("fits as far as known") | {"all_rows": other, "few_rows": other}
    assert _report.with_other_rows(both) == "; the same with all rows and with the fewest rows"
    assert _report.range_of(both) == []
    compared = {"runs": [both], "partial": ""}
    (row,) = (text for text in _runs.comparison(compared) if text.startswith("  native "))
    assert row.count(" the same") == 2


@pytest.mark.parametrize("is_installed", [True, False])
def test_processes_without_a_gpu_are_explained(
    monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    monkeypatch.setattr(_variable, "is_in_place", lambda: is_installed)
    ended = run_of("unknown") | {"gpu_used": False, "error": "ProcessRaisedException: x"}
    ended |= {"ended_by": "", "ended_at": "train.py:7", "program_status": 1}
    said = "other processes that it starts have no simulated GPU, because ferro_alloc is not "
    assert (said in _report.verdict(ended)) != is_installed
    assert (said in _report.verdict(run_of("fits") | {"gpu_used": False})) != is_installed


@pytest.mark.parametrize(("free", "are_pieces"), [(1, False), (5, False), (6, True), (9, True)])
def test_pieces_are_named_only_where_they_would_do_together(free: int, are_pieces: bool) -> None:
    failure = {"requested_bytes": 8 * MIB, "device_free_bytes": free * MIB, "file": ""}
    failure |= {"reserved_bytes": 4 * MIB, "allocated_bytes": 2 * MIB, "limit_bytes": None}
    said, *_ = _report._cause({"devices": [{}], "allocator": "native"}, failure)
    pieces = ", in pieces that could not serve it" if are_pieces else ""
    assert said.endswith(f"had {free}.00 MiB free and the allocator 2.00 MiB more{pieces}")
