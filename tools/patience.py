"""How long a process may take: as long as it moves.

A slow or busy machine must fail nothing, so no limit is on the time that passed. A process and what
it started are stopped when they did nothing at all for a while, or when they have used more of the
processors than anything that ends does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

IDLE_S = 180
PROCESSOR_S = 1_800
INTERVAL_S = 1.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat behind the name, as proc(5) counts them.
_SESSION, _TIMES = 6 - 3, slice(14 - 3, 18 - 3)


def processor_seconds(session: int) -> float:
    """What the processes of a session have used, with their children that have ended."""
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[_SESSION]) == session:
            ticks += sum(map(int, fields[_TIMES]))
    return ticks * _TICK_S


class Patience:
    """With the processes of one session, which `has_moved` says more about, such as a log."""

    def __init__(
        self,
        session: int,
        has_moved: Callable[[], object] = lambda: None,
        idle_s: float = IDLE_S,
        processor_s: float = PROCESSOR_S,
    ) -> None:
        self._session = session
        self._has_moved = has_moved
        self._idle_s = idle_s
        self._processor_s = processor_s
        self._seen: object = None
        self._since = time.monotonic()

    def what_is_wrong(self) -> str:
        """Why to stop them; empty while they move."""
        used = processor_seconds(self._session)
        if used > self._processor_s:
            return f"stopped after {used:.0f} s of processor time"
        seen = (round(used, 1), self._has_moved())
        if seen != self._seen:
            self._seen, self._since = seen, time.monotonic()
        if time.monotonic() - self._since > self._idle_s:
            return f"stopped after {self._idle_s:.0f} s in which it did nothing"
        return ""


def stop(session: int) -> None:
    """Kills the leader's process group; does nothing when it is gone."""
    try:
        os.killpg(session, signal.SIGKILL)
    except ProcessLookupError:
        return


def wait(
    process: subprocess.Popen[bytes],
    patience: Patience,
    meanwhile: Callable[[], None] = lambda: None,
) -> str:
    """Waits for the leader of a session of its own. Why it was stopped; empty when it ended."""
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
