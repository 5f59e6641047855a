"""Runs of the command in other processes that ended without a result, such as by a signal."""

from __future__ import annotations

import signal

from ferro_alloc._errors import FerroError


def ending(status: int) -> str:
    """How a process ended, by its exit status, which is negative after a signal."""
    if status >= 0:
        return f"ended with status {status}"
    number = -status
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return f"was killed by {name}{' (out of host memory?)' if name == 'SIGKILL' else ''}"


class LostError(FerroError):
    """A run of the command ended without a result."""

    def __init__(self, status: int, said: list[str]) -> None:
        super().__init__("\n".join([f"the run {ending(status)}, without a result", *said]))
        self.status = status
        """Its exit status; negative after a signal."""
        self.said = said
        """Its last lines on stderr."""
