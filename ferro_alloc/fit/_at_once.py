"""Programs that end their process themselves, by `os._exit` or by another program in its place.

Python then runs nothing more, and there would be no report. Programs end so where threads or
libraries would hang otherwise.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

REPLACED = (
    "ferro_alloc: the program replaces itself by {}, so there is no report: simulate the program "
    "that it starts"
)


class AtOnce:
    """A context manager around the program.

    `os._exit` calls `report` with the status, and the process ends with the status that it returns.
    This holds for all threads, but not for processes that the program forks.
    """

    def __init__(self, report: Callable[[int], int]) -> None:
        self._report = report
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._ended = False
        """Has the program ended?"""
        self._reporter: int | None = None
        """The thread that reports."""
        self._has_warned = False
        self._exit, self._execv, self._execve = os._exit, os.execv, os.execve

    def __enter__(self) -> AtOnce:
        os._exit, os.execv = self.leave, self._replace
        os.execve = self._replace_with
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._ended = True
        self._wait_for_report()
        self._restore()

    def _restore(self) -> None:
        os._exit, os.execv, os.execve = self._exit, self._execv, self._execve

    def _wait_for_report(self) -> None:
        """Of another thread, which ends the process."""
        if self._reporter not in (None, threading.get_ident()):
            threading.Event().wait()

    def leave(self, status: int) -> NoReturn:
        """Ends the process as `os._exit` does."""
        if os.getpid() != self._process:
            self._exit(status)
        shown = status & 0xFF
        with self._lock:
            is_first = not self._ended and self._reporter is None
            if is_first:
                self._reporter = threading.get_ident()
        if is_first:
            self._restore()
            try:
                status = self._report(shown)
            except BaseException:  # the other threads wait for the end of the process
                traceback.print_exc()
                status = 1
            self._exit(status)
        self._wait_for_report()
        self._exit(status)

    def _replace(self, path: Any, arguments: Any) -> NoReturn:
        self._warn("os.execv", path)
        self._execv(path, arguments)

    def _replace_with(self, path: Any, argv: Any, env: Any) -> NoReturn:
        self._warn("os.execve", path)
        self._execve(path, argv, env)

    def _warn(self, name: str, path: Any) -> None:
        # A search of the path tries names that do not exist.
        is_ours = os.getpid() == self._process and not self._has_warned
        if is_ours and not isinstance(path, int) and os.access(path, os.X_OK):
            self._has_warned = True
            print(REPLACED.format(name), file=sys.stderr, flush=True)
