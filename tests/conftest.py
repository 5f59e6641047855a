"""Fixtures of all Python tests: the gpu marker, and programs run in separate processes.

A program lies beside its test under tests/python, or is a piece of text (tests/programs.py).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests import programs
from tests.programs import Completed, find_program
from tools.gpu import gpu_count

# Each process of a run collects all tests. Most of that is compiling them, unless that is kept.
sys.dont_write_bytecode = False

NO_GPU = "no NVIDIA GPU on this machine"


class RunProgram(Protocol):
    def __call__(
        self,
        program: str | Path,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        check: bool = True,
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
        start_anew: bool = False,
        destructors: bool = False,
        **activate: Any,
    ) -> Completed:
        """Like `RunProgram`, on the simulated GPU that `ferro_alloc.sim.activate()` sets up. With
        `start_anew` torch is not loaded before the program begins. A test of how programs end asks
        for the static `destructors` of torch."""


def _checked(result: Completed) -> Completed:
    if result.returncode != 0:
        pytest.fail(
            f"the program ended with {result.returncode}\n--- its output\n{result.stdout}"
            f"--- its errors\n{result.stderr}",
            pytrace=False,
        )
    return result


def _resolve(program: str | Path, folder: Path) -> Path:
    if isinstance(program, str) and "\n" in program:
        path = folder / "program.py"
        path.write_text(program)
        return path
    return find_program(program) if isinstance(program, str) else program


@pytest.fixture
def run_program(tmp_path: Path) -> RunProgram:
    def run(
        program: str | Path,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Completed:
        done = programs.run([sys.executable, _resolve(program, tmp_path), *arguments], env)
        return _checked(done) if check else done

    return run


@pytest.fixture
def run_simulated(tmp_path: Path) -> RunSimulated:
    def run(
        program: str | Path,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        start_anew: bool = False,
        destructors: bool = False,
        **activate: Any,
    ) -> Completed:
        words: list[str | Path] = [_resolve(program, tmp_path), *arguments]
        done = programs.run_simulated(words, activate, env, start_anew, destructors)
        return _checked(done) if check else done

    return run


@pytest.fixture(autouse=True)
def without_extension(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of a test marked no_extension cannot import the allocator's extension."""
    if request.node.get_closest_marker("no_extension"):
        monkeypatch.setenv("PYTHONPATH", str(programs.NO_EXTENSION), prepend=os.pathsep)


# ---- side by side

LONGEST_FILES = (
    "test_torch_adversarial.py",
    "test_benchmarks.py",
    "test_graph_captures.py",
    "test_torch_sharing.py",
    "test_startup.py",
    "test_torch_failures.py",
    "test_graph_debug.py",
    "test_pytest_plugin.py",
    "test_tools.py",
    "test_torch_features.py",
    "test_sim_torch.py",
    "test_graph_groups.py",
    "test_sim_fit.py",
    "test_switching.py",
    "test_late_waits.py",
    "test_sleep.py",
    "test_sim_ends.py",
    "test_torch_judge.py",
    "test_package.py",
    "test_ranks.py",
    "test_torch_classic.py",
    "test_preloaded.py",
    "test_replay.py",
)
"""They start first, so that no worker runs one of them alone at the end."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers of pytest-xdist take whole files, whose tests share what their programs found."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):  # type: ignore[misc]  # xdist may be absent
        def _reschedule(self, node: Any) -> None:
            """xdist fails if two workers have crashed, and the second new one is ready first."""
            if node in self.registered_collections:
                super()._reschedule(node)

        def remove_node(self, node: Any) -> Any:
            """Lets another worker run the rest of the file. xdist would also repeat the test that
            crashed, until it gives up because too many workers have ended."""
            units = self.assigned_work[node]
            left = [(unit, name) for unit in units.values() for name in unit if not unit[name]]
            if not left:
                return super().remove_node(node)
            unit, crashed = left[0]
            unit[crashed] = True
            for scope in [scope for scope, unit in units.items() if all(unit.values())]:
                del units[scope]
            super().remove_node(node)
            return crashed

    config.option.loadscopereorder = False
    return Files(config, log)


def place_of(item: pytest.Item) -> int:
    name = item.path.name
    return LONGEST_FILES.index(name) if name in LONGEST_FILES else len(LONGEST_FILES)


# ---- the gpu marker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=place_of)
    if gpu_count() == 0:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=NO_GPU))


class GpuTests:
    """Counts the tests marked gpu, for the run's last lines and for tools/test.py. It counts
    reports, which also arrive when other processes run the tests."""

    def __init__(self) -> None:
        self.collected: set[str] = set()
        self.ran: set[str] = set()
        self.skipped: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected |= {i.nodeid for i in session.items if i.get_closest_marker("gpu")}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "gpu" not in report.keywords:
            return
        self.collected.add(report.nodeid)
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

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        report = os.environ.get("FERRO_TEST_REPORT")
        if report and not hasattr(session.config, "workerinput"):
            Path(report).write_text(json.dumps(self.counts()))


# ---- failures at once


class Failures:
    """Writes each failure into a file, one JSON array of its name and text per line, before the
    terminal names it. pytest prints the text only at its end."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            printed = [f"--- {title}\n{text}" for title, text in report.sections]
            with self._path.open("a") as file:
                file.write(json.dumps([report.nodeid, "\n".join([*printed, report.longreprtext])]))
                file.write("\n")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(GpuTests(), "ferro-gpu-tests")
    failures = os.environ.get("FERRO_TEST_FAILURES")
    if failures and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(Path(failures)), "ferro-failures")
