"""The launcher: a program sees the same as when Python starts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ferro_alloc import Config
from ferro_alloc._program import split_program
from tests.conftest import RunProgram

SHOW = """\
import json, sys
import ferro_alloc
print(json.dumps([sys.argv, sys.path[0], __name__, __file__, ferro_alloc.is_installed()]))
"""

# Replaces the extension, so that only the launcher is tested.
LAUNCH = """\
import sys
import ferro_alloc.allocator, ferro_alloc.__main__ as launcher
calls = []
launcher.install = calls.append
sys.path[0] = ""
code = launcher.main(sys.argv[1:])
print("installed with", *calls)
sys.exit(code)
"""


def launch(run: RunProgram, *words: str, check: bool = True) -> list[str]:
    result = run(LAUNCH, *words, check=check)
    return result.stdout.splitlines()


def test_script_sees_its_own_argv_path_and_name(tmp_path: Path, run_program: RunProgram) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    script = folder / "show.py"
    script.write_text(SHOW)
    shown, installed = launch(run_program, "run", str(script), "-m", "--conf", "x", "--", "-h")
    argv, path, name, file, _ = json.loads(shown)
    assert argv == [str(script), "-m", "--conf", "x", "--", "-h"]
    assert (path, name, file) == (str(folder), "__main__", str(script))
    assert installed == "installed with None"


def test_script_imports_its_neighbours(tmp_path: Path, run_program: RunProgram) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "neighbour.py").write_text("VALUE = 42\n")
    (folder / "main.py").write_text("import neighbour\nprint(neighbour.VALUE)\n")
    assert launch(run_program, "run", str(folder / "main.py"))[0] == "42"


def test_module_with_arguments(run_program: RunProgram) -> None:
    lines = launch(run_program, "run", "-m", "json.tool", "--help")
    assert lines[0].startswith("usage:")


def test_exit_status_of_the_program_is_kept(tmp_path: Path, run_program: RunProgram) -> None:
    script = tmp_path / "fail.py"
    script.write_text("raise SystemExit(7)\n")
    assert run_program(LAUNCH, "run", str(script), check=False).returncode == 7


def test_conf_stands_in_for_the_environment(tmp_path: Path, run_program: RunProgram) -> None:
    script = tmp_path / "nothing.py"
    script.write_text("")
    (line,) = launch(run_program, "run", "--conf", "page_size_mb:8", str(script))
    assert line == f"installed with {Config(page_size_mb=8)}"


@pytest.mark.parametrize(
    ("words", "said", "status"),
    [
        (["run"], "no program was given", 2),
        (["run", "-m"], "expected one argument", 2),
        (["run", "missing.py"], "there is no file 'missing.py'", 2),
        (["run", "--unknown", "x.py"], "unrecognized arguments: --unknown", 2),
        (["run", "--conf", "nonsense:1", __file__], "'nonsense' is not an option", 1),
        (["walk"], "invalid choice", 2),
    ],
)
def test_refusals_are_one_sentence_without_a_traceback(
    words: list[str], said: str, status: int, run_program: RunProgram
) -> None:
    result = run_program(LAUNCH, *words, check=False)
    assert result.returncode == status
    assert "Traceback" not in result.stderr
    assert said in result.stderr


def test_options_end_at_the_program() -> None:
    options, program = split_program(["--conf", "a:1", "train.py", "--conf", "b:2"])
    assert options == ["--conf", "a:1"]
    assert program is not None
    assert (program.target, program.arguments) == ("train.py", ["--conf", "b:2"])


def test_version(run_program: RunProgram) -> None:
    import ferro_alloc

    lines = launch(run_program, "--version")
    assert lines == [f"ferro_alloc {ferro_alloc.__version__}"]
