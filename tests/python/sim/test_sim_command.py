"""The ways to start the simulated GPU: the command, and `activate()` with its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import RunProgram, RunSimulated
from tests.python.commands import command

pytestmark = pytest.mark.no_extension

SIMULATE = """\
import sys
from ferro_alloc.__main__ import main
sys.exit(main(sys.argv[1:]))
"""

TAKE_A_GIBIBYTE = """\
import sys, torch
x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
print(__name__, sys.argv[1:], torch.cuda.get_device_name())
sys.exit(3)
"""

LATE = """\
import torch
from ferro_alloc import FerroError, sim
try:
    sim.activate()
except FerroError as error:
    print(error)
"""

TWICE = """\
from ferro_alloc import FerroError, sim
assert sim.is_active()
sim.activate()
try:
    sim.activate(count=3)
except FerroError as error:
    print(error)
"""

UNKNOWN_CARD = """\
from ferro_alloc import FerroError, sim
try:
    sim.activate(gpu="abacus")
except FerroError as error:
    print(error)
assert not sim.is_active()
"""


def test_command_runs_a_script_and_reports_its_peaks(
    run_program: RunProgram, tmp_path: Path
) -> None:
    script = tmp_path / "take.py"
    script.write_text(TAKE_A_GIBIBYTE)
    words = ("simulate", "--gpu", "h100", "--memory", "4GiB", str(script), "--epochs", "1")
    done = run_program(SIMULATE, *words, check=False)
    assert done.returncode == 3, done.stderr
    assert done.stdout.splitlines() == ["__main__ ['--epochs', '1'] NVIDIA H100 80GB HBM3"]
    assert "peak reserved by PyTorch               1.00 GiB" in done.stderr
    # 4 GiB minus 0.75 for context and libraries.
    assert "FITS as far as it ran, with 2.25 GiB to spare (56 %)" in done.stderr
    assert "calls that are not simulated: none" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("python", "train.py"), "Leave python out: "),
        (("python3.11", "-m", "train"), "Leave python3.11 out: "),
        (("torchrun", "--nproc-per-node", "2", "train.py"), "torchrun ... -m ferro_alloc simulate"),
        (("ls",), "ls is a command, and expected was a Python file"),
        (("no-such-file.py",), ""),
    ],
)
def test_a_command_of_the_shell_is_no_program(words: tuple[str, ...], said: str) -> None:
    done = command("simulate", *words)
    assert done.returncode == 2
    assert f"there is no file '{words[0]}'" in done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 2


NAMES_MODULES = """\
import sys
print(*(name for name in sys.modules if name.startswith("ferro_alloc")), "difflib" in sys.modules)
"""


def test_the_start_imports_nothing_that_only_some_programs_need(tmp_path: Path) -> None:
    script = tmp_path / "names.py"
    script.write_text(NAMES_MODULES)
    done = command("simulate", str(script), start_anew=True)
    *names, has_difflib = done.stdout.split()
    rare = ("ferro_alloc.snapshots", "ferro_alloc.sim._follow", "ferro_alloc.sim._harmless")
    assert [name for name in names if name.startswith(rare)] == [], done.stderr
    assert has_difflib == "False"


def test_activation_after_torch_is_refused(run_program: RunProgram) -> None:
    assert "before torch is imported" in run_program(LATE).stdout


def test_activation_is_idempotent_and_final(run_simulated: RunSimulated) -> None:
    assert "already active with" in run_simulated(TWICE).stdout


def test_unknown_cards_are_refused_with_the_known_ones(run_program: RunProgram) -> None:
    assert "h100" in run_program(UNKNOWN_CARD).stdout


def test_the_runtime_keeps_errors_and_user_objects_as_cuda_does(
    run_simulated: RunSimulated,
) -> None:
    assert run_simulated("sim_runtime.py").stdout == "done\n"
