"""Runs a test under each allocator, in processes of their own, and compares the peaks."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from ferro_alloc._startup import SIMULATED
from ferro_alloc._tables import table
from ferro_alloc.pytest_plugin import _transport
from ferro_alloc.pytest_plugin._text import size_text

if TYPE_CHECKING:
    from ferro_alloc.sim._missing import Missed

ALLOCATORS = ("native", "expandable", "ferro_alloc")
PROPERTY = "gpu_memory_compared"
Outcome = Literal["passed", "failed", "skipped"]
_RANKS = {"passed": 0, "skipped": 1, "failed": 2}
_SHOWN = ("peak_allocated_bytes", "peak_reserved_bytes")
_ADDRESS = re.compile(r"\b0x[0-9a-f]+\b")

# Options of the user's run, by destination, with the values for the processes that run one test.
_ALONE: dict[str, Any] = {
    # These have no terminal.
    **dict.fromkeys(("usepdb", "trace", "looponfail"), False),
    # The cache holds outcomes under other allocators, and the test is chosen already.
    **dict.fromkeys(("lf", "failedfirst", "newfirst", "cacheclear"), False),
    **dict.fromkeys(("stepwise", "stepwise_skip", "stepwise_reset"), False),
    # These files and folders belong to the user's run: pytest empties the folder.
    **dict.fromkeys(("xmlpath", "basetemp", "report_log", "htmlpath"), None),
    "log_file": os.devnull,
    "pastebin": None,
}


def isolate(config: pytest.Config) -> None:
    """Makes this process run its one test, and leave the files of the user's run alone."""
    config.args[:] = [config.option.ferro_measured_test]
    for name in _ALONE.keys() & vars(config.option).keys():
        setattr(config.option, name, _ALONE[name])


@dataclass
class Found:
    """What a process measured."""

    allocator: str
    reports: list[pytest.TestReport]
    verdict: tuple[Outcome, str] | None = None
    """What pytest made of a passed call because of its subtests."""
    warnings: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """The worst of all reports. A skipped subtest does not skip its test."""
        if self.failures():
            return "failed"
        is_skipped = any(each.skipped for each in self.reports if not _is_subtest(each))
        return "skipped" if is_skipped else "passed"

    def failures(self) -> list[pytest.TestReport]:
        return [each for each in self.reports if each.failed]

    def text(self) -> str:
        """Its failures, and what the test printed."""
        parts = []
        for each in self.failures():
            parts.append(each.longreprtext)
            parts += [f"{name}:\n{text.rstrip()}" for name, text in each.sections]
        return "\n\n".join(parts)


class Comparison:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._rows: dict[str, dict[str, dict[str, Any]]] = {}
        self._missed: list[Missed] = []
        self._has_xdist = False
        self._replayed: tuple[pytest.TestReport, tuple[Outcome, str]] | None = None
        # Of a process that measures.
        self._seen: list[tuple[pytest.TestReport, dict[str, Any]]] = []
        self._warnings: list[dict[str, Any]] = []
        self._numbers: dict[str, int] = {}

    def configure(self, config: pytest.Config) -> None:
        self._config = config
        worker = getattr(config, "workerinput", {})
        given = worker.get("ferro_alloc_arguments", config.invocation_params.args)
        self._arguments = [str(word) for word in given]
        self._has_xdist = config.pluginmanager.hasplugin("xdist")

    # ---- the run of the user

    def run(self, item: pytest.Item) -> bool | None:
        """Runs the test in three processes and reports it as one; None without --ferro-compare, and
        if pytest shows tests without running them."""
        options = item.config.option
        if not options.ferro_compare or options.ferro_measured:
            return None
        if getattr(options, "setuponly", False):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        found = [self._run_under(item, name) for name in ALLOCATORS]
        shown = max(found, key=lambda each: (_RANKS[each.outcome], len(each.failures())))
        if shown.outcome == "failed":
            _add_comparison(shown, found)
        numbers = {each.allocator: each.numbers for each in found}
        own: list[tuple[str, object]] = [
            (f"{name}.{key}", value)
            for name, values in numbers.items()
            for key, value in values.items()
        ]
        for report in shown.reports:
            # A worker of xdist requires the item's.
            report.nodeid, report.location = item.nodeid, item.location
            report.user_properties += [*own, (PROPERTY, json.dumps(numbers))]
            if shown.verdict is not None and report.passed and _is_call(report):
                self._replayed = (report, shown.verdict)
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        _repeat_warnings(item, shown, found)
        return True

    def judge_subtests(self, report: pytest.TestReport) -> None:
        """pytest fails a passed test with failed subtests when the terminal asks for its status,
        and knows only subtests of this process."""
        if self._replayed is not None and report is self._replayed[0]:
            report.outcome, report.longrepr = self._replayed[1]

    def _run_under(self, item: pytest.Item, name: str) -> Found:
        nodeid = item.nodeid
        if item.parent is not None and not nodeid.endswith(item.name):
            # With pytest 8 a worker of xdist adds the group to the test's own.
            nodeid = f"{item.parent.nodeid}::{item.name}"
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "measured"
            command = [
                *(sys.executable, "-m", "pytest", *self._arguments),
                *(["-n0"] if self._has_xdist else []),
                f"--rootdir={item.config.rootpath}",
                *(f"--ferro-measured={name}", f"--ferro-measured-file={file}"),
                f"--ferro-measured-test={item.config.rootpath}/{nodeid}",
                *self._off(),
            ]
            done = subprocess.run(
                command,
                cwd=item.config.invocation_params.dir,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
            data = _transport.read(file)
        if data is not None:
            if data["missed"] is not None:
                from ferro_alloc.sim._missing import Missed

                self._missed.append(Missed(**data["missed"]))
            reports = [_transport.unpack(item.config, each) for each in data["reports"]]
            if any(each.when == "teardown" for each in reports):
                return Found(name, reports, data["verdict"], data["warnings"], data["numbers"])
        text = f"the process ended with {done.returncode} before the test did\n"
        text += done.stdout + done.stderr
        keywords: dict[str, Literal[1]] = dict.fromkeys(item.keywords, 1)
        where = (item.nodeid, item.location, keywords)
        # The file of --junitxml has the properties of the teardown.
        reports = [
            pytest.TestReport(*where, "failed", text, "call"),
            pytest.TestReport(*where, "passed", None, "teardown"),
        ]
        return Found(name, reports)

    def _off(self) -> list[str]:
        """Words against options that pytest and its plugins obey before `isolate`, and that write
        to files or the terminal of the user's run."""
        words = [f"--debug={os.devnull}"] if self._options.debug else []
        if getattr(self._options, "capture", "") == "no":
            # They have no terminal to print to, so the reports carry what a test prints.
            words.append("--capture=fd")
        # pytest-cov would replace what the run has measured.
        return [*words, "--no-cov"] if hasattr(self._options, "no_cov") else words

    def missed(self) -> list[Missed]:
        """What the simulated cards of its processes could not do."""
        return self._missed

    def see(self, report: pytest.TestReport) -> None:
        if self._options.ferro_measured:
            self._seen.append((report, _transport.pack(self._config, report)))
        for key, value in report.user_properties:
            if key == PROPERTY:
                self._rows[report.nodeid] = json.loads(str(value))

    def lines(self) -> list[str]:
        if not self._rows:
            return []
        rows: list[tuple[str, ...]] = [("peak allocated / reserved", *ALLOCATORS)]
        for nodeid, numbers in self._rows.items():
            rows.append((nodeid, *(_peaks(numbers.get(name, {})) for name in ALLOCATORS)))
        return table(rows)

    # ---- a process that measures

    def see_warning(self, found: warnings.WarningMessage) -> None:
        if self._options.ferro_measured:
            self._warnings.append(_transport.pack_warning(found))

    def note(self, numbers: dict[str, int]) -> None:
        """Keeps the numbers of the test."""
        self._numbers = {key: numbers[key] for key in _SHOWN}

    def finish(self, missed: dict[str, Any] | None) -> None:
        if not self._options.ferro_measured_file:
            return
        verdict = None
        for report, data in self._seen:
            if report.outcome != data["outcome"]:
                verdict = (report.outcome, str(report.longrepr))
        found = {
            "reports": [data for _, data in self._seen],
            "verdict": verdict,
            "warnings": self._warnings,
            "numbers": self._numbers,
            "missed": missed,
        }
        _transport.write(Path(self._options.ferro_measured_file), found)


def _environment() -> dict[str, str]:
    """The variables for a process that measures."""
    unwanted = ("PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST")
    env = {key: value for key, value in os.environ.items() if key not in unwanted}
    if simulated := env.get(SIMULATED):
        # The same cards, but memory of its own.
        parts = [each for each in simulated.split(",") if not each.startswith("sharing=")]
        env[SIMULATED] = ",".join(parts)
    return env


def _is_subtest(report: pytest.TestReport) -> bool:
    """Whether it is of pytest's subtests, or of the plugin pytest-subtests."""
    return hasattr(report, "context")


def _is_call(report: pytest.TestReport) -> bool:
    return report.when == "call" and not _is_subtest(report)


def _add_comparison(shown: Found, found: list[Found]) -> None:
    """Adds the other processes to the first failure of the process that is shown."""
    own = _ADDRESS.sub("", shown.text())
    lines, sections = [], []
    for each in found:
        words: str = each.outcome
        if each is shown:
            words += ", as above"
        elif each.outcome == "failed":
            is_same = _ADDRESS.sub("", each.text()) == own
            words += ", in the same way" if is_same else ", as below"
            if not is_same:
                sections.append((f"under {each.allocator}", each.text()))
        lines.append(f"under {each.allocator}: {words}")
    sections.insert(0, ("compared allocators", "\n".join(lines)))
    report = shown.failures()[0]
    cause: Any = report.longrepr
    if hasattr(cause, "addsection"):
        for name, text in sections:
            cause.addsection(name, text)
    else:
        report.sections += sections


def _repeat_warnings(item: pytest.Item, shown: Found, found: list[Found]) -> None:
    """Reports each warning once, as if the test had run in this process."""
    repeated = list(shown.warnings)
    for each in found:
        repeated += [warning for warning in each.warnings if warning not in repeated]
    for warning in repeated:
        item.ihook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": _transport.unpack_warning(warning),
                "when": "runtest",
                "nodeid": item.nodeid,
                "location": None,
            }
        )


def _peaks(numbers: dict[str, int]) -> str:
    if not numbers:
        return "not measured"
    allocated, reserved = numbers["peak_allocated_bytes"], numbers["peak_reserved_bytes"]
    return f"{size_text(allocated)} / {size_text(reserved)}"
