"""Limits the time of a process: it may run as long as it makes progress.

A slow or busy machine must not make tests fail, so there is no limit on elapsed time. A process and
its descendants are stopped when they have done nothing for a while, or have used more processor
time than any program that ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

IDLE_S = 180
PROCESSOR_S = 1_800
# A process that waits in a loop with pauses of 10 ms uses 0.5 s within IDLE_S.
LEAST_S = 1.0
INTERVAL_S = 1.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
# The fields of /proc/PID/stat after the name, numbered as in proc(5).
_PARENT, _GROUPS, _TIMES = 4 - 3, slice(5 - 3, 7 - 3), slice(14 - 3, 18 - 3)

Completed = subprocess.CompletedProcess[str]


class ExitCode(int):
    """An exit code that a failed assertion shows with what happened: a signal, or why the process
    was stopped."""

    def __new__(cls, code: int, wrong: str = "") -> ExitCode:
        found = super().__new__(cls, code)
        found.what = wrong or (f"ended by {_name_of_signal(-code)}" if code < 0 else "")
        return found

    what: str
    """Empty for a process that ended by itself."""

    def __repr__(self) -> str:
        return f"{int(self)}{f' ({self.what})' if self.what else ''}"


def _name_of_signal(number: int) -> str:
    names = {each.value: each.name for each in signal.Signals}
    return names.get(number, f"signal {number}")


def processor_seconds(leader: int) -> float:
    """The processor time of the processes of a session or a process group, with ended children."""
    return sum(ticks for _, ticks in _processes_of(leader)) * _TICK_S


def _processes_of(leader: int) -> Iterator[tuple[int, int]]:
    """The id of each process of the session or group, and its ticks."""
    for pid, fields in _all_processes():
        if str(leader) in fields[_GROUPS]:
            yield pid, sum(map(int, fields[_TIMES]))


def _all_processes() -> Iterator[tuple[int, list[str]]]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield int(folder.name), (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended


def _with_descendants(leader: int) -> list[int]:
    """Also those in other sessions, such as the programs that a process of pytest runs."""
    children: dict[int, list[int]] = {}
    for pid, fields in _all_processes():
        children.setdefault(int(fields[_PARENT]), []).append(pid)
    found = [leader]
    for pid in found:
        found += children.get(pid, [])
    return found


class Patience:
    """Watches the processes of one session or group, with other progress, such as a log."""

    def __init__(
        self,
        leader: int,
        has_moved: Callable[[], object] = lambda: None,
        idle_s: float = IDLE_S,
        processor_s: float = PROCESSOR_S,
        least_s: float = LEAST_S,
    ) -> None:
        """Less processor time than `least_s` within `idle_s` is no progress."""
        self._leader = leader
        self._has_moved = has_moved
        self._idle_s = idle_s
        self._processor_s = processor_s
        self._least_s = least_s
        self._used = 0.0
        self._seen: object = None
        self._since = time.monotonic()

    def what_is_wrong(self) -> str:
        """The reason to stop the processes; empty while they make progress."""
        used = processor_seconds(self._leader)
        if used > self._processor_s:
            return f"stopped after {used:.0f} s of processor time"
        seen = self._has_moved()
        if seen != self._seen or used - self._used >= self._least_s:
            self._used, self._seen, self._since = used, seen, time.monotonic()
        if time.monotonic() - self._since > self._idle_s:
            return f"stopped after {self._idle_s:.0f} s in which it did nothing"
        return ""


def stop(leader: int) -> None:
    """Kills the leader, its descendants, and the processes of its group and session; no-op when all
    have ended."""
    for pid in [*_with_descendants(leader), *(pid for pid, _ in _processes_of(leader))]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait(
    process: subprocess.Popen[bytes],
    patience: Patience,
    meanwhile: Callable[[], None] = lambda: None,
) -> str:
    """Waits for a session's leader. Returns why it was stopped; empty if it ended by itself."""
    while True:
        try:
            process.wait(INTERVAL_S)
            return ""
        except subprocess.TimeoutExpired:
            meanwhile()
            if wrong := patience.what_is_wrong():
                stop(process.pid)
                process.wait()
                return wrong


def run(
    words: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
    processor_s: float = PROCESSOR_S,
) -> Completed:
    """Runs a command as long as it makes progress. The caller checks the exit code. If the command
    was stopped, its stderr ends with the reason, which its exit code shows too."""
    command = [str(word) for word in words]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            env=None if env is None else dict(env),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        try:
            wrong = wait(process, Patience(process.pid, processor_s=processor_s))
        except BaseException:
            stop(process.pid)
            raise
        return completed(command, process.returncode, out, errors, wrong)


def completed(
    words: Sequence[str], code: int, out: IO[bytes], errors: IO[bytes], wrong: str
) -> Completed:
    texts = []
    for file in (out, errors):
        file.seek(0)
        texts.append(file.read().decode(errors="replace"))
    said = texts[1] + (f"\n{wrong}\n" if wrong else "")
    return Completed(list(words), ExitCode(code, wrong), texts[0], said)
