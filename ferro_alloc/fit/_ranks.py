"""Processes of one program that torchrun started: each simulates its rank and reports for it.

They meet in torchrun's store, which keeps what they wrote there. A second run in the same processes
would read the addresses of the first one and wait for it, so each rank runs once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ferro_alloc._errors import FerroError
from ferro_alloc.fit._range import ExtraRun
from ferro_alloc.fit._result import (
    DOES_NOT_FIT,
    ENDED_BY_UNKNOWN,
    FITS_AS_FAR_AS_KNOWN,
    RAN_OUT,
    Result,
)
from ferro_alloc.fit._stopping import TIME_LIMIT
from ferro_alloc.fit._together import TOGETHER

VERDICTS = {
    DOES_NOT_FIT: "does not fit",
    FITS_AS_FAR_AS_KNOWN: "fits as far as known",
    ENDED_BY_UNKNOWN: "ended by an uncomputed value",
}
"""The exit statuses that say more of the memory than of the program."""
PLACE = "{rank}"
"""In the name of a file: becomes the number of the rank."""


@cache
def count() -> int:
    """The number of ranks; 1 without torchrun. Of the first call: a program may set variables."""
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if size.isdigit() and "RANK" in os.environ else 1


def file_of(file: str | Path) -> str:
    """The name of this rank's file. Raises `FerroError` if the ranks would have the same one."""
    name = str(file)
    if count() > 1 and PLACE not in name:
        stem, suffix = Path(name).stem, Path(name).suffix
        raise FerroError(
            f"each of {count()} ranks would write {name}: expected a name with {PLACE}, as in "
            f"{stem}-{PLACE}{suffix}"
        )
    return name.replace(PLACE, os.environ.get("RANK", "0"))


def keep_to_report() -> None:
    """Call it when the program of a rank has ended: torchrun sends SIGTERM to all ranks as soon as
    one has ended with another status than 0, also with that of an unsure verdict. For the main
    thread."""
    if count() > 1 and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def leave_with(result: Result) -> None:
    """Call it after the report: this rank exits when the others have reported, if its status is
    that of a verdict, or if it failed after another one. Torchrun would end them."""
    is_verdict = result["exit_status"] in VERDICTS or result["partial"] == TIME_LIMIT
    TOGETHER.leave_with(
        result["exit_status"],
        result["program_status"],
        waits=is_verdict or bool(result["ended_ranks"]),
        seconds=result["seconds"],
    )


def after_others(result: Result) -> str:
    """Behind how this rank ended: which ranks had ended before."""
    said = []
    for other in result["ended_ranks"]:
        status = other["status"]
        meaning = f" ({VERDICTS[status]})" if status in VERDICTS else ""
        how = "without a report" if status < 0 else f"with status {status}{meaning}"
        said.append(f"rank {other['rank']} had ended {how}")
    return f" after {' and '.join(said)}" if said else ""


def lines_of(result: Result, extra_runs: Sequence[ExtraRun]) -> list[str]:
    """Which of these runs would differ from that of the rank, which is made once."""
    runs = [extra for extra in extra_runs if extra.is_needed(result)]
    runs = [extra for extra in runs if extra.rows != "all" or result["verdict"] != RAN_OUT]
    if count() == 1 or result["partial"] or not runs:
        return []
    options = " and with ".join(f"--rows {extra.rows}" for extra in runs)
    return [
        "  ranks run once, here with the rows of zeros. To see the range, start torchrun again "
        f"with {options}"
    ]
