"""The output of a running step of the tests: its progress, and the failures."""

from __future__ import annotations

import json
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

NINJA = re.compile(r"^\[(\d+)/(\d+)\] ")
GTEST_ALL = re.compile(r"^\[==========\] Running (\d+) tests")
GTEST_BEGIN = re.compile(r"^\[ RUN      \] (\S+)")
STOPPED = re.compile(r"^stopped after \d+ s ")  # of tools/patience.py
# The parameter of a test follows its name after a comma.
GTEST_END = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+?\.[^\s,]+)(?:, .*)? \(\d+ ms\)")
# Lines of pytest, without and with workers, each with -v.
PYTEST_ALL = re.compile(r"(?:\bcollected |\[)(\d+) items?")
PYTEST_LEFT_OUT = re.compile(r"/ (\d+) deselected")
PYTEST_END = re.compile(r"^(\S.*?::.*?) (PASSED|FAILED|ERROR|SKIPPED)\b.*\[ *\d+%\]$")
WORKER_BEGIN = re.compile(r"^(\S+\.py::.*?) $")
WORKER_END = re.compile(r"^\[gw\d+\] \[ *\d+%\] (PASSED|FAILED|ERROR|SKIPPED) (\S.*?)\s*$")

EVERY_S = {True: 1.0, False: 30.0}
"""Seconds between two lines of progress, on a terminal and elsewhere."""
LONG_S = 60.0
"""A test that has run so long is named."""


@dataclass
class Reading:
    """The progress of a log of ninja, GoogleTest or pytest."""

    done: int = 0
    of: int = 0
    unit: str = ""
    running: list[str] = field(default_factory=list)
    """The tests that have begun and not ended, of GoogleTest or of pytest with workers."""
    stopped: str = ""
    """Why the process was stopped; empty if it was not."""
    _text: list[str] = field(default_factory=list)
    _ended: set[str] = field(default_factory=set)

    def read(self, line: str) -> tuple[str, list[str]]:
        """The test that failed with this line, and its output; usually empty."""
        if found := NINJA.match(line):
            self.unit, self.done, self.of = "compiled", int(found[1]), int(found[2])
        elif found := GTEST_ALL.match(line):
            self._begin(int(found[1]))
        elif found := GTEST_BEGIN.match(line):
            self.running, self._text = [found[1]], []
        elif found := WORKER_BEGIN.match(line):
            self.running.append(found[1])
        elif found := GTEST_END.match(line):
            return self._end(found[2], found[1])
        elif found := WORKER_END.match(line):
            # A worker that crashes prints into the same line.
            begun = [name for name in self.running if found[2].startswith(name)]
            return self._end(max(begun, key=len, default=found[2]), found[1])
        elif found := PYTEST_END.match(line):
            return self._end(found[1], found[2])
        elif found := PYTEST_ALL.search(line):
            left_out = PYTEST_LEFT_OUT.search(line)
            self._begin(int(found[1]) - (int(left_out[1]) if left_out else 0))
        else:
            if STOPPED.match(line):
                self.stopped = line
            self._text.append(line)
        return "", []

    def _begin(self, tests: int) -> None:
        self.unit, self.done, self.of = "tests", 0, tests
        self._ended.clear()
        self.running.clear()

    def _end(self, name: str, outcome: str) -> tuple[str, list[str]]:
        # pytest-xdist may repeat a test that ended its worker; a fixture may fail after its test.
        self._ended.add(name)
        self.done = len(self._ended)
        self.running = [each for each in self.running if each != name]
        text, self._text = self._text, []
        if outcome not in ("FAILED", "ERROR"):
            return "", []
        return name, text


class Progress:
    """The progress of one step with known expected seconds; later steps take `after` seconds.

    `alone(name)` is the command that runs one test alone. Each of several logs that grow at the
    same time has its own reading. Thread-safe.
    """

    def __init__(
        self, step: str, seconds: float, after: float, alone: Callable[[str], str] = str
    ) -> None:
        self._step = step
        self._seconds = seconds
        self._after = after
        self._alone = alone
        self._started = self._told = time.monotonic()
        self._terminal = sys.stdout.isatty()
        self._readings = [Reading()]
        self._heard: dict[int, float] = {}
        """When each reading got its last line."""
        self._failures: Path | None = None
        self._failures_read = 0
        self._texts: dict[str, list[str]] = {}
        self._lock = threading.Lock()
        self.failed: list[str] = []
        """The names of the tests that failed."""
        self.commands: list[str] = []
        """What runs each of them alone."""

    def for_tests_of(self, alone: Callable[[str], str], failures: Path | None = None) -> None:
        """pytest writes the texts of failures into the file (`Failures` in tests/conftest.py), also
        those of files that it could not import."""
        self._alone = alone
        self._failures = failures

    def watch(self, line: str) -> None:
        self._watch(self._readings[0], line)

    def side_by_side(self, logs: int) -> list[Callable[[str], None]]:
        """A function for each of the logs that begin now, which reads its lines. Their tests are
        counted together, in the place of those of earlier logs."""
        self._readings = [Reading() for _ in range(logs)]
        return [partial(self._watch, reading) for reading in self._readings]

    def fail(self, name: str, command: str) -> None:
        with self._lock:
            self._fail(name, command, [])

    def fail_running(self, log: int = 0) -> None:
        """Reports the tests that ran when the process of this log ended or was stopped."""
        with self._lock:
            reading = self._readings[log]
            what = reading.stopped or "its process ended before the test"
            for name in reading.running:
                self._fail(name, self._alone(name), [what])

    def have_all_run(self) -> bool:
        """Whether each test has ended. If not, the run was given up, such as after crashes."""
        done, of, _ = self._counts()
        return 0 < of <= done

    def _fail(self, name: str, command: str, text: list[str]) -> None:
        if name in self.failed:
            return
        self.failed.append(name)
        self.commands.append(command)
        self._clear()
        print("\n".join(["", *text[-40:], f"FAILED {name}", f"  {command}"]), flush=True)

    def _watch(self, reading: Reading, line: str) -> None:
        with self._lock:
            name, text = reading.read(line)
            self._read_failures()
            if name:
                self._fail(name, self._alone(name), self._texts.get(name, text))
            self._heard[id(reading)] = time.monotonic()
            self._tell_in_time()

    def tick(self) -> None:
        """Shows the time left and a test that takes long, also while nothing is printed."""
        with self._lock:
            self._tell_in_time()

    def _tell_in_time(self) -> None:
        now = time.monotonic()
        if now - self._told >= EVERY_S[self._terminal]:
            self._told = now
            self._tell(now - self._started)

    def _slow(self) -> str:
        """The last test that began, if its log has been silent for long."""
        now = time.monotonic()
        for reading in self._readings:
            silent = now - self._heard.get(id(reading), now)
            if reading.running and silent > LONG_S:
                return f", in {reading.running[-1]} for {minutes(silent)}"
        return ""

    def _read_failures(self) -> None:
        if self._failures is None or not self._failures.exists():
            return
        with self._failures.open("rb") as file:
            file.seek(self._failures_read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._failures_read += len(whole) + len(newline)
        for line in filter(None, whole.split(b"\n")):
            name, text = json.loads(line)
            self._texts[name] = text.splitlines()
            if "::" not in name:  # a file that was not imported; the log names it only at the end
                self._fail(name, self._alone(name), self._texts[name])

    def left(self, passed: float) -> float:
        """The remaining seconds of this step. The slowest tests come first, so the number of
        finished tests tells little until the step takes longer than expected."""
        done, of, _ = self._counts()
        if passed < self._seconds or done == 0:
            return max(0.0, self._seconds - passed)
        return passed / done * (of - done)

    def _counts(self) -> tuple[int, int, str]:
        done = sum(reading.done for reading in self._readings)
        return done, sum(reading.of for reading in self._readings), self._readings[0].unit

    def _tell(self, passed: float) -> None:
        done, of, unit = self._counts()
        counted = f"{done} of {of} {unit}, " if of else ""
        failures = f"{len(self.failed)} failed, " if self.failed else ""
        text = f"{self._step}: {counted}{failures}{minutes(self.left(passed) + self._after)} left"
        text += self._slow()
        if self._terminal:
            print(f"\r{text[: width()]:{width()}}", end="", flush=True)
        else:
            print(f"  {text}", flush=True)

    def _clear(self) -> None:
        if self._terminal:
            print(f"\r{'':{width()}}\r", end="", flush=True)

    end = _clear


def width() -> int:
    """Of a line that leaves the terminal's last column free."""
    return max(1, shutil.get_terminal_size().columns - 1)


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
