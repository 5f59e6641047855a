"""Runs a command into a log file as long as it makes progress, and reads the growing log."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools import patience
from tools.gpu import gpu_count
from tools.patience import Patience

ROOT = Path(__file__).resolve().parent.parent
JOBS = int(os.environ.get("MAX_JOBS", len(os.sched_getaffinity(0))))
LINES_SHOWN = 60
IDLE_S = 900

Command = Sequence[str | Path]
_running: set[int] = set()
_interrupted = threading.Event()
Watch = Callable[[str], None]


def side_by_side() -> list[str]:
    """The arguments for parallel tests; none on a GPU, whose memory the tests would share."""
    if gpu_count() > 0 or importlib.util.find_spec("xdist") is None:
        return []
    # More workers than cores, because programs wait for processes and timeouts part of the time.
    return ["-n", str(JOBS + min(JOBS // 2, 4))]


def tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LINES_SHOWN:])


class _Lines:
    """The complete lines that were added to a growing file since the last read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> list[str]:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return whole.decode(errors="replace").split("\n") if newline else []


def stop_at_interrupt() -> None:
    """From now on an interrupt stops all commands, also those for which other threads wait."""

    def stop(number: int, frame: object) -> None:
        _interrupted.set()
        for pid in list(_running):
            patience.stop(pid)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)


def execute(
    log: Path,
    command: Command,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    watch: Watch = lambda line: None,
    tick: Callable[[], None] = lambda: None,
) -> bool:
    """Returns whether it succeeded. `env` is its whole environment; None means this process's.
    `watch` gets each printed line soon after, and `tick` is called every second. The log says why a
    command was stopped."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as out:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        lines = _Lines(log)

        def read() -> None:
            for line in lines.new():
                watch(line)
            tick()

        _running.add(process.pid)
        # Programs of tests have their own sessions and limits; here they show only in the log.
        # Their own progress shows here as the little time in which pytest looks at them.
        patient = Patience(process.pid, lambda: log.stat().st_size, IDLE_S, float("inf"), 0.1)
        try:
            wrong = patience.wait(process, patient, read)
        except BaseException:
            patience.stop(process.pid)
            raise
        finally:
            _running.discard(process.pid)
        if wrong:
            out.write(f"\n{wrong}\n")
    if _interrupted.is_set():
        raise KeyboardInterrupt  # in another thread: what was stopped has not failed
    read()
    return process.returncode == 0
