"""FERRO_ALLOC in the environment, and starting programs under launchers and in children."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest

from ferro_alloc import Config, _variable
from tests import programs
from tests.programs import ROOT, SETTINGS, Completed

SHOW = """\
import sys
torch_before = "torch" in sys.modules
import torch
import ferro_alloc
print(torch_before, ferro_alloc.is_installed(), torch.cuda.get_allocator_backend())
"""
SIMULATED = "import ferro_alloc.sim\nferro_alloc.sim.activate(memory='1GiB')\n"
ON, OFF = "False True ferro_alloc\n", "False False native\n"


@pytest.fixture
def site_folder(tmp_path: Path) -> Path:
    """A folder whose .pth files Python reads at its start, instead of an installed package's.

    A sitecustomize module reads them: it runs at the end of Python's start.
    """
    folder = tmp_path / "site"
    folder.mkdir()
    shutil.copy(ROOT / "ferro_alloc.pth", folder)
    (folder / "sitecustomize.py").write_text(
        "import site\nsite.addsitedir(__path__)\n".replace("__path__", repr(str(folder)))
        + (programs.START / "sitecustomize.py").read_text()
    )
    return folder


def start(*command: str, site: Path, check: bool = True, **env: str) -> Completed:
    path = os.pathsep.join([str(site), str(ROOT)])
    done = programs.run(command, {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", **env})
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def python(folder: Path, program: str, site: Path, **env: str) -> Completed:
    script = folder / "program.py"
    script.write_text(program)
    return start(sys.executable, str(script), site=site, check=True, **env)


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("value", "is_on"),
    [(value, True) for value in ("1", "true", "ON", " yes ", "strict")]
    + [(value, False) for value in ("", "0", "false", "Off", " no", "2")],
)
def test_values(monkeypatch: pytest.MonkeyPatch, value: str, is_on: bool) -> None:
    monkeypatch.setenv(_variable.NAME, value)
    read = _variable.value()
    assert (read in (*_variable.ON, _variable.STRICT)) == is_on
    assert (read in _variable.OFF or _variable.what_is_wrong(read) != "") != is_on


@pytest.mark.parametrize(
    "value", ["1", *(pytest.param(value, marks=LONG) for value in ("true", "ON", " yes "))]
)
def test_on_with_settings_from_the_environment(
    tmp_path: Path, site_folder: Path, value: str
) -> None:
    program = (
        SIMULATED + SHOW + "status = ferro_alloc.status()\nprint(status.config, status.startup)"
    )
    settings = {"FERRO_ALLOC": value, "FERRO_ALLOC_CONF": "page_size_mb:4"}
    done = python(tmp_path, program, site_folder, **settings)
    startup = f"FERRO_ALLOC is '{value.strip().lower()}': installs it when torch is imported"
    assert (done.stdout, done.stderr) == (f"{ON}{Config(page_size_mb=4)} {startup}\n", "")


@pytest.mark.parametrize(
    "env",
    [
        {},
        *(pytest.param({"FERRO_ALLOC": v}, marks=LONG) for v in ("0", "", "false", "Off")),
    ],
)
def test_off(tmp_path: Path, site_folder: Path, env: Mapping[str, str]) -> None:
    done = python(tmp_path, SIMULATED + SHOW, site_folder, **env)
    assert (done.stdout, done.stderr) == (OFF, "")


def test_another_value_is_named_and_means_off(tmp_path: Path, site_folder: Path) -> None:
    done = python(tmp_path, SIMULATED + SHOW, site_folder, FERRO_ALLOC="2")
    assert done.stdout == OFF
    assert done.stderr == (
        "ferro_alloc: FERRO_ALLOC is '2': expected 1, 0 or strict, so it stays off\n"
    )


def test_the_file_is_read_twice_as_if_once(tmp_path: Path, site_folder: Path) -> None:
    """Python reads it twice in a virtual environment. The program's own choice still comes
    first."""
    again = "from ferro_alloc._startup import begin; begin()\n"
    done = start(sys.executable, "-c", again, site=site_folder, FERRO_ALLOC="maybe")
    assert done.stderr.count("FERRO_ALLOC is 'maybe'") == 1
    own = "import ferro_alloc\nferro_alloc.install(ferro_alloc.Config(page_size_mb=4))\n"
    said = "import sys\nprint(ferro_alloc.status(), file=sys.stderr)\n"
    done = python(tmp_path, SIMULATED + again + own + said, site_folder, FERRO_ALLOC="1")
    assert "page_size_mb:4" in done.stderr


def test_unset_imports_nothing(site_folder: Path) -> None:
    program = "import sys; print(sorted(name for name in sys.modules if 'ferro' in name))"
    assert start(sys.executable, "-c", program, site=site_folder).stdout == "[]\n"


@pytest.mark.parametrize("value", ["", "1", "strict", "2"])
@pytest.mark.parametrize("left", ["nothing", "an empty folder", "a part"])
def test_half_uninstalled_prints_nothing(
    tmp_path: Path, site_folder: Path, left: str, value: str
) -> None:
    """The .pth file exists, but the package is missing or lacks modules."""
    if left != "nothing":
        (site_folder / "ferro_alloc").mkdir()
    if left == "a part":
        for name in ("__init__.py", "_startup.py"):
            shutil.copy(ROOT / "ferro_alloc" / name, site_folder / "ferro_alloc")
    # Runs without the checkout, and from an empty folder.
    env = {key: value for key, value in os.environ.items() if key not in SETTINGS}
    env |= {"PYTHONPATH": str(site_folder), _variable.NAME: value}
    program = "import sys; print([n for n in sys.modules if n == 'ferro_alloc._startup'])"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


@pytest.mark.parametrize("value", [pytest.param("", marks=LONG), "1"])
def test_without_the_extension_python_starts_as_ever(
    tmp_path: Path, site_folder: Path, value: str
) -> None:
    """The import of torch reports in one line that the requested extension is missing."""
    gone = shutil.ignore_patterns("*.so*", "__pycache__")
    shutil.copytree(ROOT / "ferro_alloc", site_folder / "ferro_alloc", ignore=gone)
    env = {"FERRO_ALLOC": value}
    done = start(sys.executable, "-c", "print('runs')", site=site_folder, **env)
    assert (done.stdout, done.stderr) == ("runs\n", "")
    done = python(tmp_path, "import torch\nprint('runs')\n", site_folder, **env)
    assert done.stdout == "runs\n"
    assert done.stderr.count("\n") == (1 if value else 0)
    assert not value or done.stderr.startswith("ferro_alloc: the extension does not load")


def test_no_torch_before_the_program_imports_it(site_folder: Path) -> None:
    program = "import sys; print('torch' in sys.modules, 'ferro_alloc' in sys.modules)"
    done = start(sys.executable, "-c", program, site=site_folder, FERRO_ALLOC="1")
    assert (done.stdout, done.stderr) == ("False True\n", "")


def test_the_programs_own_choice_comes_first(tmp_path: Path, site_folder: Path) -> None:
    program = (
        SIMULATED + "import ferro_alloc\nferro_alloc.install(ferro_alloc.Config(page_size_mb=8))\n"
        "import torch\nprint(ferro_alloc.status().config)\n"
    )
    done = python(tmp_path, program, site_folder, FERRO_ALLOC="1")
    assert (done.stdout, done.stderr) == (f"{Config(page_size_mb=8)}\n", "")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"FERRO_ALLOC_CONF": "page_size:2"}, "ferro_alloc: FERRO_ALLOC_CONF: 'page_size' is no"),
        pytest.param(
            {},
            "ferro_alloc: ferro_alloc cannot be installed on this machine: no CUDA driver",
            marks=LONG,
        ),
    ],
)
def test_a_refusal_is_one_line_and_the_program_goes_on(
    tmp_path: Path, site_folder: Path, settings: Mapping[str, str], said: str
) -> None:
    program = SHOW.replace("import torch\n", "import torch\ntorch.ones(2).sum()\n", 1)
    done = python(
        tmp_path,
        (SIMULATED if settings else "") + program,
        site_folder,
        FERRO_ALLOC="1",
        **settings,
    )
    assert done.stdout == OFF
    assert done.stderr.startswith(said)
    assert done.stderr.endswith("; the program continues with PyTorch's own allocator\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"FERRO_ALLOC_CONF": "page_size:2"}, "ValueError: FERRO_ALLOC_CONF: 'page_size' is no"),
        pytest.param(
            {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            "FerroError: ferro_alloc would be installed and",
            marks=LONG,
        ),
        pytest.param(
            {},
            "FerroError: ferro_alloc cannot be installed on this machine: no CUDA driver",
            marks=LONG,
        ),
    ],
)
def test_strict_ends_the_program_where_it_cannot_be_installed(
    tmp_path: Path, site_folder: Path, settings: Mapping[str, str], said: str
) -> None:
    script = tmp_path / "program.py"
    script.write_text((SIMULATED if settings else "") + SHOW)
    command = (sys.executable, str(script))
    done = start(*command, site=site_folder, check=False, FERRO_ALLOC="strict", **settings)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr.splitlines()[-1]


def test_strict_is_on_where_all_is_well(tmp_path: Path, site_folder: Path) -> None:
    done = python(tmp_path, SIMULATED + SHOW, site_folder, FERRO_ALLOC="strict")
    assert (done.stdout, done.stderr) == (ON, "")


# The field `startup` of the status, without torch, which the status needs.
DESCRIBED = "from ferro_alloc import _variable\nprint(_variable.describe())\n"


def test_status_says_whether_the_variable_has_an_effect(tmp_path: Path, site_folder: Path) -> None:
    def said(site: Path, value: str) -> str:
        return python(tmp_path, DESCRIBED, site, FERRO_ALLOC=value).stdout.strip()

    assert said(site_folder, "1") == "FERRO_ALLOC is '1': installs it when torch is imported"
    assert said(site_folder, "0") == ""
    assert said(site_folder, "2") == "FERRO_ALLOC is '2': expected 1, 0 or strict; it stays off"
    if not (Path(sysconfig.get_paths()["purelib"]) / "ferro_alloc.pth").exists():
        without = said(tmp_path, "1")
        assert without.startswith("FERRO_ALLOC is '1' without an effect, because Python finds no")
        assert "pip install --no-build-isolation ." in without


@LONG
def test_spawned_children_inherit_the_variable(tmp_path: Path, site_folder: Path) -> None:
    program = (
        SIMULATED + "import sys, torch, ferro_alloc\nimport torch.multiprocessing as mp\n"
        # Each child prints with a single write, because both print at the same time.
        "def child(rank):\n    sys.stdout.write(f'{ferro_alloc.is_installed()}\\n')\n"
        "if __name__ == '__main__':\n    mp.spawn(child, nprocs=2)\n"
    )
    assert python(tmp_path, program, site_folder, FERRO_ALLOC="1").stdout == "True\nTrue\n"
    assert python(tmp_path, program, site_folder).stdout == "False\nFalse\n"


# ---- the launcher


# As `python -m ferro_alloc`, on the simulated GPU.
SIMULATED_LAUNCHER = SIMULATED + (
    "import runpy, sys\nrunpy.run_module('ferro_alloc', run_name='__main__', alter_sys=True)\n"
)


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """A module `launch` that is `ferro_alloc` on the simulated GPU, and a program for it."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "launch.py").write_text(SIMULATED_LAUNCHER)
    (folder / "show.py").write_text(
        "import os, sys\nimport torch, ferro_alloc\n"
        "rank = os.environ.get('RANK', '-')\n"
        "sys.stdout.write(f'{rank} {ferro_alloc.is_installed()} {sys.argv[1:]}\\n')\n"
    )
    return folder


ALONE = ["--no-python", sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


@pytest.mark.parametrize(
    ("ranks", "launch", "program"),
    [
        (1, [*ALONE, "-m", "launch"], ["-m", "show"]),
        pytest.param(2, ["-m", "launch"], ["show.py"], marks=LONG),
        pytest.param(2, ["-m", "launch"], ["-m", "show"], marks=LONG),
        pytest.param(2, [*ALONE, "-m", "launch"], ["show.py"], marks=LONG),
        pytest.param(2, [*ALONE, "-m", "launch"], ["-m", "show"], marks=LONG),
    ],
)
def test_under_torchrun(
    launcher: Path, tmp_path: Path, ranks: int, launch: list[str], program: list[str]
) -> None:
    target = program if program[0] == "-m" else [str(launcher / program[0])]
    command = [*TORCHRUN, str(ranks), *launch, "run", *target, "--lr", "1"]
    done = start(*command, site=launcher)
    assert sorted(done.stdout.splitlines()) == [f"{i} True ['--lr', '1']" for i in range(ranks)]


@pytest.mark.parametrize(
    ("options", "expected"), [pytest.param([], False, marks=LONG), (["--children"], True)]
)
def test_children_of_a_launched_program(
    launcher: Path, site_folder: Path, options: list[str], expected: bool
) -> None:
    (launcher / "parent.py").write_text(
        "import os\nimport ferro_alloc\nimport torch.multiprocessing as mp\n"
        "def child(rank):\n    print(ferro_alloc.is_installed(), flush=True)\n"
        "if __name__ == '__main__':\n"
        "    print(ferro_alloc.is_installed(), os.environ.get('FERRO_ALLOC_CONF'), flush=True)\n"
        "    mp.spawn(child, nprocs=1)\n"
    )
    # Children are plain Python: sitecustomize gives them the simulated GPU too, and the package
    # counts as installed.
    with (site_folder / "sitecustomize.py").open("a") as file:
        file.write(SIMULATED)
        file.write("import ferro_alloc._variable as v\nv.is_in_place = lambda: True\n")
    (launcher / "launch.py").write_text(SIMULATED_LAUNCHER.replace(SIMULATED, ""))
    command = [sys.executable, "-m", "launch", "run", *options, "--conf", "page_size_mb:4"]
    done = start(
        *command,
        str(launcher / "parent.py"),
        site=Path(os.pathsep.join([str(site_folder), str(launcher)])),
    )
    conf = "page_size_mb:4" if expected else "None"
    assert done.stdout == f"True {conf}\n{expected}\n"


def test_children_without_the_installed_package_are_refused(launcher: Path) -> None:
    purelib = Path(sysconfig.get_paths()["purelib"])
    if (purelib / "ferro_alloc.pth").exists():
        pytest.skip("the package is installed here")
    command = [sys.executable, "-m", "launch", "run", "--children", str(launcher / "show.py")]
    done = start(*command, site=launcher, check=False)
    assert done.returncode == 1
    assert "--children needs the installed package" in done.stderr
    assert "Traceback" not in done.stderr
