"""What all Python tests share: the gpu marker, and programs run in a process of their own.

A process can hold one allocator and one driver, so whatever installs ferro_alloc or uses CUDA runs
as a program that lies beside its test under tests/python, or as a piece of text.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import pytest

from tools.gpu import gpu_count

ROOT = Path(__file__).resolve().parent.parent
PYTHON_TESTS = ROOT / "tests" / "python"
NO_GPU = "no NVIDIA GPU on this machine"

# Puts the simulated GPU in place, then behaves like `python PROGRAM ARGUMENTS`.
SIMULATE = """\
import json, os, runpy, sys
import ferro_alloc.sim
ferro_alloc.sim.activate(**json.loads(sys.argv[1]))
del sys.argv[0:2]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# Settings of the person who runs the tests must not reach the programs.
SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "FERRO_ALLOC_CONF")


@cache
def find_program(name: str) -> Path:
    """The one file of that name under tests/python, in whichever room it lies."""
    found = list(PYTHON_TESTS.rglob(name))
    assert len(found) == 1, f"{len(found)} files under {PYTHON_TESTS} are named {name}, not one"
    return found[0]


def clean_environment() -> dict[str, str]:
    """This process's, without the settings above, and with the checkout to import from."""
    inherited = {key: value for key, value in os.environ.items() if key not in SETTINGS}
    path = os.pathsep.join(filter(None, [str(ROOT), inherited.get("PYTHONPATH")]))
    return {**inherited, "PYTHONPATH": path}


Completed = subprocess.CompletedProcess[str]


class RunProgram(Protocol):
    def __call__(
        self,
        program: str | Path,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float = 300,
    ) -> Completed:
        """Runs a program of tests/python by its name, any path, or source text with a line break.

        With `check` a non-zero exit fails the test, showing the program's output.
        """


class RunSimulated(Protocol):
    def __call__(
        self,
        program: str | Path,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float = 300,
        **activate: Any,
    ) -> Completed:
        """Like `RunProgram`, on the simulated GPU that `ferro_alloc.sim.activate()` sets up."""


def _run(
    command: Sequence[str], env: Mapping[str, str] | None, check: bool, timeout: float
) -> Completed:
    result = subprocess.run(
        command,
        env={**clean_environment(), **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if check and result.returncode != 0:
        pytest.fail(
            f"the program ended with {result.returncode}\n--- its output\n{result.stdout}"
            f"--- its errors\n{result.stderr}",
            pytrace=False,
        )
    return result


def _resolve(program: str | Path, folder: Path) -> str:
    if isinstance(program, str) and "\n" in program:
        path = folder / "program.py"
        path.write_text(program)
        return str(path)
    return str(find_program(program) if isinstance(program, str) else program)


@pytest.fixture
def run_program(tmp_path: Path) -> RunProgram:
    def run(
        program: str | Path,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float = 300,
    ) -> Completed:
        command = [sys.executable, _resolve(program, tmp_path), *arguments]
        return _run(command, env, check, timeout)

    return run


@pytest.fixture
def run_simulated(tmp_path: Path) -> RunSimulated:
    def run(
        program: str | Path,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float = 300,
        **activate: Any,
    ) -> Completed:
        options = json.dumps(activate)
        path = _resolve(program, tmp_path)
        return _run(
            [sys.executable, "-c", SIMULATE, options, path, *arguments], env, check, timeout
        )

    return run


# ---- the gpu marker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if gpu_count() == 0:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=NO_GPU))


class GpuTests:
    """Counts the tests marked gpu, for the run's last lines and for tools/test.py."""

    def __init__(self) -> None:
        self.collected: set[str] = set()
        self.ran: set[str] = set()
        self.skipped: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected = {i.nodeid for i in session.items if i.get_closest_marker("gpu")}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.nodeid not in self.collected:
            return
        if report.skipped:
            self.skipped.add(report.nodeid)
        elif report.when == "call":
            self.ran.add(report.nodeid)

    def counts(self) -> dict[str, int]:
        return {
            "collected": len(self.collected),
            "ran": len(self.ran),
            "skipped": len(self.skipped),
        }

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(
            f"GPUs: {gpu_count()}; GPU tests: {len(self.collected)} collected, {len(self.ran)} ran"
            f", {len(self.skipped)} skipped"
        )

    def pytest_sessionfinish(self) -> None:
        report = os.environ.get("FERRO_TEST_REPORT")
        if report:
            Path(report).write_text(json.dumps(self.counts()))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(GpuTests(), "ferro-gpu-tests")
