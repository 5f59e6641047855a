"""Runs a test under each allocator, in processes of their own, and compares the peaks."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from ferro_alloc._tables import table
from ferro_alloc.pytest_plugin._text import size_text

if TYPE_CHECKING:
    from ferro_alloc.sim._missing import Missed

ALLOCATORS = ("native", "expandable", "ferro_alloc")
PROPERTY = "gpu_memory_compared"
Outcome = Literal["passed", "failed", "skipped"]
Phase = Literal["setup", "call", "teardown"]
PHASES: tuple[Phase, ...] = ("setup", "call", "teardown")

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


class Comparison:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._arguments: list[str] = []
        self._rows: dict[str, dict[str, dict[str, Any]]] = {}
        self._measured: list[dict[str, Any]] = []
        self._missed: list[Missed] = []
        self._has_xdist = False

    def configure(self, config: pytest.Config) -> None:
        worker = getattr(config, "workerinput", {})
        given = worker.get("ferro_alloc_arguments", config.invocation_params.args)
        self._arguments = [str(word) for word in given]
        self._has_xdist = config.pluginmanager.hasplugin("xdist")

    def run(self, item: pytest.Item) -> bool | None:
        """Runs the test in three processes and reports it as one; None without --ferro-compare."""
        if not self._options.ferro_compare or self._options.ferro_measured:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        found = {name: self._run_under(item, name) for name in ALLOCATORS}
        outcomes = {each["outcome"] for each in found.values()}
        worst: Outcome = "passed"
        if "failed" in outcomes or "skipped" in outcomes:
            worst = "failed" if "failed" in outcomes else "skipped"
        text: Any = None
        decisive = next(each for each in found.values() if each["outcome"] == worst)
        if worst == "failed":
            text = "\n\n".join(
                f"under {name}:\n{each['text']}"
                for name, each in found.items()
                if each["outcome"] == "failed"
            )
        elif worst == "skipped":
            text = decisive["text"]
            if decisive["xfail"] is None:
                text = (str(item.path), (item.location[1] or 0) + 1, text)
        numbers = {name: each["numbers"] for name, each in found.items()}
        flat = [
            (f"{name}.{key}", value) for name, own in numbers.items() for key, value in own.items()
        ]
        for when in PHASES:
            is_call = when == "call"
            expected = {} if decisive["xfail"] is None else {"wasxfail": decisive["xfail"]}
            report = pytest.TestReport(
                nodeid=item.nodeid,
                location=item.location,
                keywords=dict.fromkeys(item.keywords, 1),
                outcome=worst if is_call else "passed",
                longrepr=text if is_call else None,
                when=when,
                user_properties=[*flat, (PROPERTY, json.dumps(numbers))],
                **(expected if is_call else {}),
            )
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _run_under(self, item: pytest.Item, name: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "measured.json"
            command = [
                *(sys.executable, "-m", "pytest", *self._arguments),
                *(["-n0"] if self._has_xdist else []),
                f"--rootdir={item.config.rootpath}",
                *(f"--ferro-measured={name}", f"--ferro-measured-file={file}"),
                f"--ferro-measured-test={item.config.rootpath}/{item.nodeid}",
                *self._off(),
            ]
            unwanted = ("FERRO_ALLOC_SIM", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST")
            env = {key: value for key, value in os.environ.items() if key not in unwanted}
            done = subprocess.run(
                command,
                cwd=item.config.invocation_params.dir,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
            if file.exists():
                found = json.loads(file.read_text())
                if found["missed"] is not None:
                    from ferro_alloc.sim._missing import Missed

                    self._missed.append(Missed(**found["missed"]))
                reports = found["reports"]
                for each in reports:
                    if each["outcome"] != "passed":
                        return dict(each)
                for each in reports:
                    if each["when"] == "call":
                        return dict(each)
        text = f"the process ended with {done.returncode} before the test did\n"
        text += done.stdout + done.stderr
        return {"outcome": "failed", "text": text, "numbers": {}, "xfail": None}

    def _off(self) -> list[str]:
        """Words against options that pytest and its plugins obey before `isolate`, and that write
        to files of the user's run."""
        words = [f"--debug={os.devnull}"] if self._options.debug else []
        # pytest-cov would replace what the run has measured.
        return [*words, "--no-cov"] if hasattr(self._options, "no_cov") else words

    def see(self, report: pytest.TestReport) -> None:
        if self._options.ferro_measured:
            text = str(report.longrepr) if report.longrepr else ""
            if isinstance(report.longrepr, tuple):
                text = report.longrepr[2]
            keys = ("peak_allocated_bytes", "peak_reserved_bytes")
            numbers = {key: value for key, value in report.user_properties if key in keys}
            self._measured.append(
                {
                    "when": report.when,
                    "outcome": report.outcome,
                    "text": text,
                    "numbers": numbers,
                    "xfail": getattr(report, "wasxfail", None),
                }
            )
        elif report.when == "call":
            for key, value in report.user_properties:
                if key == PROPERTY:
                    self._rows[report.nodeid] = json.loads(str(value))

    def missed(self) -> list[Missed]:
        """What the simulated cards of its processes could not do."""
        return self._missed

    def finish(self, missed: dict[str, Any] | None) -> None:
        if self._options.ferro_measured_file:
            found = {"reports": self._measured, "missed": missed}
            Path(self._options.ferro_measured_file).write_text(json.dumps(found))

    def lines(self) -> list[str]:
        if not self._rows:
            return []
        rows: list[tuple[str, ...]] = [("peak allocated / reserved", *ALLOCATORS)]
        for nodeid, numbers in self._rows.items():
            rows.append((nodeid, *(_peaks(numbers.get(name, {})) for name in ALLOCATORS)))
        return table(rows)


def _peaks(numbers: dict[str, int]) -> str:
    if not numbers:
        return "not measured"
    allocated, reserved = numbers["peak_allocated_bytes"], numbers["peak_reserved_bytes"]
    return f"{size_text(allocated)} / {size_text(reserved)}"
