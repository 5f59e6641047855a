"""Ends a program before its own end: at a time limit, on Ctrl-C or on SIGTERM."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

GRACE_S = 5.0
"""How long a program may take to end after its time limit, and to notice SIGTERM, in seconds."""
RANK_GRACE_S = 20.0
"""How long a rank of torchrun may take to end after SIGTERM: after 30 s torchrun kills it."""
AGAIN_S = 0.05
"""How long after a lost `Stopped` it is raised again, in seconds."""
TIME_LIMIT, INTERRUPTED, TERMINATED = "time limit", "interrupted", "terminated"
STATUS = {TIME_LIMIT: 124, INTERRUPTED: 130, TERMINATED: 143}
"""Exit statuses: those of timeout(1), and of a shell for SIGINT and SIGTERM."""


_received: list[str] = []


def note_received(reason: str) -> None:
    """Notes that a signal asked this command to end while it waited for a run of the program."""
    _received.append(reason)


def received() -> str:
    """The first reason that was noted, a key of `STATUS`; or empty."""
    return _received[0] if _received else ""


class Stopped(BaseException):
    """Raised in the program's main thread to end it."""


class Stopping:
    """A context manager around the program, for the main thread.

    SIGTERM and the end of the time limit raise `Stopped` in the program, unless it handles SIGTERM
    or SIGALRM itself. Python drops an exception that is raised in a callback, such as `__del__`,
    and imports of extensions and a bare `except` swallow it; `Stopped` is then raised again. If the
    program does not end within `GRACE_S` after its time limit, `last_resort` is called in another
    thread; likewise after SIGTERM, if the main thread waits outside of Python and cannot notice it,
    as a rank does for another one, or if a rank goes on for `RANK_GRACE_S`. Ctrl-C raises
    `KeyboardInterrupt`, as in any program. After a program that was ended,
    further signals are ignored, so that a report can be written.
    """

    def __init__(
        self,
        seconds: float | None = None,
        last_resort: Callable[[], object] | None = None,
        is_rank: bool = False,
    ) -> None:
        self.reason = ""
        """Why the program was ended: one of `STATUS`, or empty."""
        self._seconds = seconds
        self._last_resort = last_resort
        self._is_rank = is_rank
        self._ended = threading.Event()
        self._armed: list[signal.Signals] = []
        self._number = 0  # of the last signal; a thread watches from the first one on
        self._reports_dropped = sys.unraisablehook
        self._before_fork = threading.local()
        self._pipe: tuple[int, int] | None = None
        self._timer = threading.Thread(target=self._wait, name="ferro-time-limit", daemon=True)

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            self._arm(signal.SIGTERM)
            if self._last_resort is not None and signal.SIGTERM in self._armed:
                self._watch()
            if self._seconds is not None:
                self._arm(signal.SIGALRM)
            os.register_at_fork(
                before=self._block, after_in_parent=self._unblock, after_in_child=self._leave
            )
            self._reports_dropped = sys.unraisablehook
            sys.unraisablehook = self._on_dropped
        if self._seconds is not None:
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()
        self._stop_watching()
        if sys.unraisablehook == self._on_dropped:
            sys.unraisablehook = self._reports_dropped
        if self.reason:
            for number in (signal.SIGINT, *self._armed):
                signal.signal(number, signal.SIG_IGN)
        else:
            self._disarm()

    def end(self, error: BaseException | None = None) -> None:
        """Call it as soon as the program has ended, with the error that ended it: nothing is raised
        afterwards. Sets the reason if the error is `KeyboardInterrupt`."""
        self._ended.set()
        if isinstance(error, KeyboardInterrupt) and not self.reason:
            self.reason = INTERRUPTED

    def _arm(self, number: signal.Signals) -> None:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, self._handle)
            self._armed.append(number)

    def _watch(self) -> None:
        """Python writes the numbers of signals to a pipe, also while the main thread waits outside
        of Python. A program that sets another descriptor for them goes without."""
        ours = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        earlier = signal.set_wakeup_fd(ours[1], warn_on_full_buffer=False)
        if earlier >= 0:
            signal.set_wakeup_fd(earlier)
            for end in ours:
                os.close(end)
            return
        self._pipe = ours
        os.set_blocking(ours[0], True)
        threading.Thread(target=self._wait_for_signal, name="ferro-signals", daemon=True).start()

    def _wait_for_signal(self) -> None:
        assert self._pipe is not None
        while number := os.read(self._pipe[0], 1):
            if self._ended.is_set():
                return
            if number[0] == signal.SIGTERM and signal.getsignal(signal.SIGTERM) == self._handle:
                break
        else:
            return
        is_unnoticed = not self._ended.wait(GRACE_S) and not self._number
        if is_unnoticed or (self._is_rank and not self._ended.wait(RANK_GRACE_S - GRACE_S)):
            self.reason = self.reason or TERMINATED
            self._resort()

    def _stop_watching(self) -> None:
        if self._pipe is None or threading.current_thread() is not threading.main_thread():
            return
        earlier = signal.set_wakeup_fd(-1)
        if earlier not in (-1, self._pipe[1]):
            signal.set_wakeup_fd(earlier)

    def _resort(self) -> None:
        if self._last_resort is not None:
            self._last_resort()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # A command that has noted it waits for the end of a run, and must not end before that.
        if not self._ended.is_set() and not received():
            self.reason = self.reason or TERMINATED
            is_first = not self._number
            self._number = number
            if is_first:
                # Without the locks of `threading`, which the main thread may hold.
                _thread.start_new_thread(self._raise_until_ended, ())
            raise Stopped

    def _on_dropped(self, dropped: sys.UnraisableHookArgs) -> None:
        if not isinstance(dropped.exc_value, Stopped):
            self._reports_dropped(dropped)

    def _raise_until_ended(self) -> None:
        main = threading.main_thread().ident
        while main is not None and not self._ended.wait(AGAIN_S):
            if not _handles_stopped(main):
                signal.pthread_kill(main, self._number)

    # A process that the program forks ends by these signals as it would without handlers. Python
    # forgets a signal that arrives in the child before its handlers can run, so it waits.

    def _block(self) -> None:
        self._before_fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._armed)

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before_fork.mask)

    def _leave(self) -> None:
        # Its signals are not those of this process.
        self._stop_watching()
        self._disarm()
        self._unblock()

    def _disarm(self) -> None:
        for number in self._armed:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL)

    def _wait(self) -> None:
        if self._ended.wait(self._seconds):
            return
        self.reason = TIME_LIMIT
        main = threading.main_thread().ident
        if signal.SIGALRM in self._armed and main is not None:
            signal.pthread_kill(main, signal.SIGALRM)
        if not self._ended.wait(GRACE_S):
            self._resort()


def _handles_stopped(thread: int) -> bool:
    """Whether `Stopped` is on its way through the thread, in a `finally` or `except` block."""
    found: object = sys._current_exceptions().get(thread)
    # Up to Python 3.11 the type, the exception and the traceback.
    error = found[1] if isinstance(found, tuple) else found
    seen: set[int] = set()
    while isinstance(error, BaseException) and id(error) not in seen:
        if isinstance(error, Stopped):
            return True
        seen.add(id(error))
        error = error.__context__
    return False
