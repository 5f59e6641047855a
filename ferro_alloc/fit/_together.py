"""Ranks that one torchrun started on this machine exit together, so that each one has its report.

Torchrun sends SIGTERM to all ranks as soon as one has exited with another status than 0, and the
status of a verdict counts. So a rank that has reported becomes this script, which holds nothing and
exits with the rank's status when the others have reported too. To the others it has ended.

They share a file in torchrun's folder. Each rank has a record in it, and holds a lock on that until
it ends, in whatever way.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import signal
import sys
import time
from pathlib import Path

NAME = "ferro_alloc-ranks"
RECORD = 24
"""Bytes of a record: empty before the rank starts, else its number and its status, or `RUNS`."""
RUNS = "runs"
START_S = 60.0
"""How long a rank waits for another one to start, in seconds: that one may be no simulation."""
LEAST_S = 20.0
POLL_S = 0.1


class Together:
    """This rank among those of its torchrun; without torchrun it is alone, and nothing waits."""

    def __init__(self) -> None:
        self._file = -1
        self._path = ""
        self._own, self._count = 0, 1
        self._rank = ""
        self._status = -1
        self._limit: float | None = None
        self._waits = False

    def join(self) -> None:
        """Call it before the program starts."""
        place = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
        numbers = [os.environ.get(name, "") for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK")]
        if not place or not all(map(str.isdigit, numbers)) or int(numbers[1]) < 2:
            return
        self._path = str(Path(place).absolute().parents[1] / NAME)
        self._own, self._count, self._rank = int(numbers[0]), int(numbers[1]), numbers[2]
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # A lock of this process: those that it forks have none.
            fcntl.lockf(
                self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, RECORD, self._own * RECORD, os.SEEK_SET
            )
            self._note(RUNS)
        except OSError:  # no such folder, or a simulation within the rank's program
            self._file = -1
            return
        # One of the first handlers is one of the last to be called.
        atexit.register(self._exit)

    def ended(self) -> list[dict[str, int]]:
        """The other ranks that have ended with another status than 0. That of one that ended
        without a report is -1."""
        if self._file < 0:
            return []
        found = []
        for index in range(self._count):
            rank, status = _record(self._file, index)
            if index == self._own or not rank or status == "0":
                continue
            if status != RUNS or not _holds(self._file, index):
                number = -1 if status == RUNS else int(status)
                if number not in (128 + signal.SIGINT, 128 + signal.SIGTERM):
                    found.append({"rank": int(rank), "status": number})
        return found

    def leave_with(self, status: int, program_status: int, waits: bool, seconds: float) -> None:
        """Call it with the exit status after the report. If the rank `waits`, the process exits
        when the other ranks have reported. A rank whose program failed may be what they wait for,
        so it waits only as long again as it took."""
        self._status, self._waits = status, waits
        self._limit = None if program_status == 0 else max(LEAST_S, seconds)

    def _exit(self) -> None:
        if self._file < 0 or self._status < 0:
            return
        try:
            self._note(str(self._status))
            if self._waits and self._status:
                self._become_waiting()
        except (OSError, ValueError):
            return  # the process exits at once

    def leave(self) -> None:
        """For a thread, which ends the process without the handlers of `atexit`. Returns if the
        rank does not wait."""
        self._exit()

    def _note(self, status: str) -> None:
        text = f"{self._rank} {status}".encode()
        os.pwrite(self._file, text.ljust(RECORD), self._own * RECORD)

    def _become_waiting(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        for path in Path("/proc/self/fd").iterdir():
            if int(path.name) > 2:
                with contextlib.suppress(OSError):  # that of this list
                    os.set_inheritable(int(path.name), False)
        limit = "" if self._limit is None else str(self._limit)
        numbers = (self._own, self._count, self._status)
        words = (self._path, *map(str, numbers), limit)
        os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, *words])


def _record(file: int, index: int) -> tuple[str, str]:
    """The number and the status of a rank; both are empty before it starts."""
    text = os.pread(file, RECORD, index * RECORD).decode(errors="replace").strip("\0 ")
    rank, _, status = text.partition(" ")
    return (rank, status) if status == RUNS or status.lstrip("-").isdigit() else ("", "")


def _holds(file: int, index: int) -> bool:
    """Whether the rank still runs."""
    try:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, RECORD, index * RECORD, os.SEEK_SET)
        fcntl.lockf(file, fcntl.LOCK_UN, RECORD, index * RECORD, os.SEEK_SET)
    except OSError:
        return True
    return False


def wait(path: str, own: int, count: int, limit: float | None) -> None:
    """Returns when the other ranks have ended, or after `limit` seconds."""
    began = time.monotonic()
    file = os.open(path, os.O_RDWR)
    others = [index for index in range(count) if index != own]
    while limit is None or time.monotonic() < began + limit:
        starts = any(not _record(file, index)[0] for index in others)
        if starts and time.monotonic() > began + START_S:
            starts = False
        if not starts and not any(_holds(file, index) for index in others):
            return
        time.sleep(POLL_S)


def main(words: list[str]) -> None:
    path, own, count, status, limit = words
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(int(status)))
    try:
        wait(path, int(own), int(count), float(limit) if limit else None)
    finally:
        os._exit(int(status))


TOGETHER = Together()

if __name__ == "__main__":
    main(sys.argv[1:])
