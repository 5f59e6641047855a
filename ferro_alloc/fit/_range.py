"""Runs of a program with as many and with as few rows as possible, after one with those of zeros.

They show in which range its memory lies if masks of unknown numbers are true, or false. Their ends
are not the program's: with such masks a check that always holds may fail, and a loop may not end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ferro_alloc.fit import _certainty
from ferro_alloc.fit._lost import LostError
from ferro_alloc.fit._result import RAN_OUT, UNKNOWN, Result
from ferro_alloc.fit._stopping import INTERRUPTED, STATUS, TERMINATED, TIME_LIMIT, received


@dataclass(frozen=True)
class ExtraRun:
    """One of these runs. Its time limit is `times` that of the first run, and at least `least`."""

    key: str
    """Of its result, in that of the first run."""
    rows: str
    """One of `_certainty.ROWS`."""
    is_needed: Callable[[Result], bool]
    """Whether it differs from the first run."""
    times: float
    least: float

    def time_limit(self, first: Result, of_command: float | None) -> float:
        """In seconds."""
        own = max(self.least, self.times * float(first["seconds"]))
        return own if of_command is None else min(own, of_command)


EXTRA_RUNS = (
    ExtraRun("all_rows", "all", _certainty.may_have_more_rows, 10, 60),
    # With fewer rows a program has less to do.
    ExtraRun("few_rows", "none", _certainty.may_have_fewer_rows, 2, 30),
)


def add_range(
    run: Callable[..., Result],
    first: Result,
    time_limit: float | None,
    say: Callable[[str], None],
    extra_runs: Sequence[ExtraRun] = EXTRA_RUNS,
) -> None:
    """Runs the program again with other rows, where that differs from the first run, and adds the
    results to its own. `run` takes options and raises `LostError` without a result. `time_limit`
    is the command's. A signal that ends such a run ends the command: no more runs follow."""
    if first["partial"]:
        return
    for extra in extra_runs:
        if not extra.is_needed(first) or (extra.rows == "all" and first["verdict"] == RAN_OUT):
            continue
        amount = "many" if extra.rows == "all" else "few"
        say(f"rows depended on unknown values: running again with as {amount} as possible ...")
        options = [f"--rows={extra.rows}", f"--time-limit={extra.time_limit(first, time_limit)}"]
        rows = extra.rows
        try:
            found = run(*options)
            first[extra.key] = found
            if _ended_early(found) and _certainty.has_sizes(first):
                say("that run ended early: again, with masks as of zeros ...")
                rows += _certainty.ALONE
                found = {**run(*options, "--rows-alone"), "instead_of": found}
                first[extra.key] = found
        except LostError as error:
            lost = {"rows": rows, "status": error.status, "stderr": error.said}
            first["lost_runs"].append(lost)
            if reason := received():
                _end(first, reason)
                return
            continue
        if found["partial"] in (INTERRUPTED, TERMINATED):
            _end(first, found["partial"])
            return


def _end(first: Result, reason: str) -> None:
    first["partial"] = reason
    first["exit_status"] = STATUS[reason]


def _ended_early(result: Result) -> bool:
    return result["verdict"] == UNKNOWN and result["partial"] in ("", TIME_LIMIT)
