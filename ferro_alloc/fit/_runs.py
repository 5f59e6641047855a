"""Runs of the `simulate` command in separate processes: three allocators, or other values."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ferro_alloc._errors import FerroError
from ferro_alloc._status import size_text
from ferro_alloc._tables import table
from ferro_alloc.fit import _certainty, _refused, _workspaces
from ferro_alloc.fit._allocators import ALLOCATORS
from ferro_alloc.fit._range import EXTRA_RUNS
from ferro_alloc.fit._result import (
    AS_FAR_AS_KNOWN,
    DOES_NOT_FIT,
    FITS,
    FITS_AS_FAR_AS_KNOWN,
    FITTING,
    RAN_OUT,
    UNKNOWN,
    Result,
)
from ferro_alloc.fit._shortage import short_by
from ferro_alloc.fit._stopping import INTERRUPTED, STATUS, TERMINATED, Stopped
from ferro_alloc.sim._missing import ABOUT_CALLS, NOTHING_MISSING

COLUMNS = {"all": "with all rows", "none": "with the fewest rows"}
"""The heads of the columns of runs with other rows."""
LAST_LINES = 24
"""Maximum number of stderr lines that are shown for a failed program: the last ones."""
PLENTY = 16
"""Multiple of the card's memory in the run that finds out how much a program needs."""


@dataclass(frozen=True)
class Child:
    """A program, and the options of the command for it, without `--json`."""

    options: Sequence[str]
    program: Sequence[str]
    environ: Mapping[str, str] | None = None
    """None: that of this process at the time of the run."""
    folder: str | None = None
    """The working directory; None as with `environ`."""

    def keep_surroundings(self) -> Child:
        """The same with the present environment and working directory."""
        return replace(self, environ=dict(os.environ), folder=str(Path.cwd()))

    def run(
        self,
        *options: str,
        environ: Mapping[str, str] | None = None,
        shows_output: bool = False,
    ) -> Result:
        """Discards the program's output, or passes it on. Raises `FerroError` without a result."""
        with tempfile.TemporaryDirectory() as folder:
            found = Path(folder, "result.json")
            words = [*self.options, *options, "--json", str(found), *self.program]
            surroundings = {**(self.environ or os.environ), **(environ or {})}
            status, text = execute(words, surroundings, self.folder, shows_output)
            said = text.splitlines()
            # The report stands at the end.
            heads = [i for i, line in enumerate(said) if line.startswith("simulated ")]
            end = heads[-1] if heads else None
            if shows_output:
                print("\n".join(said[:end]), file=sys.stderr, flush=True)
            if not found.exists():
                raise FerroError(f"the run ended with status {status}\n{text}".strip())
            result: Result = json.loads(found.read_text())
            if result["verdict"] not in (*FITTING, RAN_OUT):
                result["stderr"] = _last_lines(said[:end])
            return result


TRACEBACK = "Traceback (most recent call last):"


def _last_lines(said: list[str]) -> list[str]:
    """The last traceback and what follows it, or else the last lines; the end of them, if they are
    many."""
    while said and not said[-1].strip():
        said = said[:-1]
    begin = max((i for i, line in enumerate(said) if line == TRACEBACK), default=0)
    return said[begin:] if len(said) - begin <= LAST_LINES else said[-LAST_LINES:]


def execute(
    words: Sequence[str], environ: Mapping[str, str], folder: str | None, shows_output: bool
) -> tuple[int, str]:
    """Runs the command `simulate` in a new interpreter; returns its status and its stderr.

    If this process is interrupted meanwhile, so is the run, which then reports what it has seen.
    """
    sys.stdout.flush()
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "ferro_alloc", "simulate", *words],
            env=environ,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=None if shows_output else subprocess.DEVNULL,
            stderr=stderr,
        )
        status = None
        while status is None:
            try:
                status = process.wait()
            except KeyboardInterrupt:
                # A terminal sends it to the run too, which ignores it while it reports.
                process.send_signal(signal.SIGINT)
            except Stopped:
                process.send_signal(signal.SIGTERM)
        stderr.seek(0)
        return status, stderr.read().decode(errors="replace")


def say(text: str) -> None:
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def _peaks(result: Result) -> Result:
    found: Result = max(result["devices"], key=lambda device: device["peak_in_use_bytes"])
    return found


def _outcome(result: Result) -> tuple[str, str]:
    """The verdict, and the memory that is left or missing."""
    if result["verdict"] == RAN_OUT:
        missing = short_by(result)
        return RAN_OUT, f"short by {size_text(missing)} or more" if missing else ""
    if result["verdict"] in FITTING:
        return result["verdict"], f"{size_text(_peaks(result)['spare_bytes'])} to spare"
    if result["partial"]:
        return result["partial"], ""
    if end := _refused.end_of(result):
        return f"not known: no {end['library']}", ""
    return f"failed, status {result['program_status']}", ""


def _fits(result: Result) -> bool:
    """Whether it fits, also with as many rows as possible."""
    most = result["all_rows"]
    return result["verdict"] in FITTING and (most is None or most["verdict"] != RAN_OUT)


# ---- three allocators


def compare(
    child: Child, memory: int, shown: Sequence[str] = (), views: Path | None = None
) -> Result:
    """Runs the program under each allocator in turn; once more with plenty of memory if it ran out.

    `memory` is the card's, in bytes. Shows the program's output under the allocators in `shown`.
    Each run saves the data of its page in the folder `views`, in a file of its allocator's name.
    Ends after a run that was interrupted.
    """
    runs: list[Result] = []
    for name in ALLOCATORS:
        say(f"running under {name} ...")
        if name in shown:
            print(f"---- output under {name}", file=sys.stderr, flush=True)
        options = [] if views is None else [f"--views={views / name}"]
        result = child.run("--allocator", name, *options, shows_output=name in shown)
        runs.append(result)
        if result["partial"] in (INTERRUPTED, TERMINATED):
            break
        if result["verdict"] == RAN_OUT:
            say(f"it ran out: what would it need under {name}? ...")
            # Without further runs, unless the command chose the rows.
            rows = [] if any(o.startswith("--rows=") for o in child.options) else ["--rows=zeros"]
            whole = child.run("--allocator", name, "--memory", f"{PLENTY * memory}b", *rows)
            if whole["verdict"] in FITTING:
                result["needs_bytes"] = _peaks(whole)["peak_in_use_bytes"]
    verdicts = [run["verdict"] for run in runs]
    failed = [run["exit_status"] for run in runs if run["verdict"] not in (*FITTING, RAN_OUT)]
    if FITS in verdicts:
        status = 0
    elif AS_FAR_AS_KNOWN in verdicts:
        status = FITS_AS_FAR_AS_KNOWN
    else:
        status = failed[0] if failed else DOES_NOT_FIT
    partial = runs[-1]["partial"]
    if partial in (INTERRUPTED, TERMINATED):
        status = STATUS[partial]
    return {"schema": 1, "runs": runs, "partial": partial, "exit_status": status}


def comparison(result: Result) -> list[str]:
    """The table, how sure it is, and the last stderr lines of programs that failed for another
    reason."""
    runs = result["runs"]
    card = runs[0]["card"]
    head = ("allocator", "verdict", "peak reserved", "card in use", "room")
    extra = [run for run in EXTRA_RUNS if any(result[run.key] for result in runs)]
    rows = [(*head, *(COLUMNS[run.rows] for run in extra))]
    for run in runs:
        verdict, room = _outcome(run)
        peaks = _peaks(run)
        if "needs_bytes" in run:
            room = f"needs {size_text(run['needs_bytes'])}"
        reserved, used = (
            size_text(peaks["peak_reserved_bytes"]),
            size_text(peaks["peak_in_use_bytes"]),
        )
        row = (run["allocator"], verdict, reserved, used, room)
        rows.append((*row, *(_with_rows(run[other.key]) for other in extra)))
    lines = ["", f"simulated {card['name']}, {size_text(card['memory_bytes'])}", *table(rows)]
    fits = [run["allocator"] for run in runs if run["verdict"] == FITS]
    known = [run["allocator"] for run in runs if run["verdict"] == AS_FAR_AS_KNOWN]
    unknown = [run["allocator"] for run in runs if run["verdict"] == UNKNOWN]
    if fits or not (known or unknown):
        lines.append(f"  it fits under {', '.join(fits) if fits else 'none of them'}")
    if known:
        lines.append(f"  it fits as far as known under {', '.join(known)}")
    if unknown:
        lines.append(f"  it did not run to its end under {', '.join(unknown)}")
    unsure = next((run for run in runs if not _certainty.is_sure(run)), None)
    if unsure is not None:
        lines += _certainty.lines_of(unsure)
    close = next((run for run in runs if _workspaces.decides(run)), runs[0])
    lines += _workspaces.lines_of(close)
    if result["partial"]:
        lines.append(f"  the last run was ended ({result['partial']}): this report is partial")
    lines += dict.fromkeys(line for run in runs for line in _refused.end_lines(run))
    ends: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        ends.setdefault(tuple(_said(run)), []).append(run["allocator"])
    for text, names in ends.items():
        lines += [f"  its last lines under {', '.join(names)}:", *text] if text else []
    return lines + _not_simulated(runs)


def _not_simulated(runs: Sequence[Result]) -> list[str]:
    """The lines about kernels and calls; of programs that failed also those about values."""
    every = any(run["verdict"] == UNKNOWN for run in runs)
    lines = dict.fromkeys(line for run in runs for line in run["not_simulated"])
    return [
        f"  {line}"
        for line in lines
        if line != NOTHING_MISSING and (every or line.startswith(ABOUT_CALLS))
    ]


def _with_rows(result: Result | None) -> str:
    """The cell of a run with other rows."""
    if result is None:
        return ""
    used = size_text(_peaks(result)["peak_in_use_bytes"])
    if result["verdict"] == UNKNOWN:
        return f"ended early, {used} in use until then"
    of_zeros = ", masks as of zeros" if result.get("instead_of") else ""
    return f"{_outcome(result)[0]}, {used} in use{of_zeros}"


def _said(result: Result) -> list[str]:
    return [f"    {line}" for line in result.get("stderr", ())]


# ---- other values of an argument


@dataclass(frozen=True)
class Question:
    """`NAME`, `NAME=...` or `NAME=LOW..HIGH`: the largest value with which the program fits."""

    name: str
    low: int = 1
    high: int = 1 << 20

    @classmethod
    def parse(cls, text: str) -> Question:
        name, _, rest = text.partition("=")
        bounds = [] if rest in ("", "...") else rest.split("..")
        if not name.strip("-") or len(bounds) not in (0, 2) or not all(b.isdigit() for b in bounds):
            raise FerroError(
                f"--what-if has '{text}': expected NAME or NAME=LOW..HIGH, as in batch=1..512"
            )
        found = cls(name, *map(int, bounds))
        if not 1 <= found.low <= found.high:
            raise FerroError(f"--what-if has '{text}': expected 1 <= LOW <= HIGH")
        return found


@dataclass(frozen=True)
class Place:
    """Where the program takes a value from: a word of its command line, or the environment."""

    name: str
    value: int
    word: int | None = None
    prefix: str = ""

    def put(self, program: Sequence[str], value: int) -> list[str]:
        """The command line with another value."""
        words = list(program)
        if self.word is not None:
            words[self.word] = f"{self.prefix}{value}"
        return words

    def run(self, child: Child, value: int) -> Result:
        environ = {self.name: str(value)} if self.word is None else {}
        return Child(child.options, self.put(child.program, value)).run(
            "--no-few-rows", environ=environ
        )


def _plain(name: str) -> str:
    return name.lstrip("-+").replace("-", "_").lower()


def _parts(name: str) -> list[str]:
    return _plain(name).replace(".", "_").split("_")


def find_place(question: Question, program: Sequence[str]) -> Place:
    """`--batch 8`, `--batch=8`, `batch=8` or a variable; `batch` finds `--train_batch_size` too.

    Raises `FerroError` where nothing or more than one thing is meant.
    """
    found: list[Place] = []
    for i, word in enumerate(program):
        name, equals, value = word.partition("=")
        if equals and value.isdigit():
            found.append(Place(name, int(value), i, f"{name}="))
        elif word.startswith("-") and program[i + 1 : i + 2] and program[i + 1].isdigit():
            found.append(Place(word, int(program[i + 1]), i + 1))
    wanted = _plain(question.name)
    exact = [place for place in found if _plain(place.name) == wanted]
    near = exact or [p for p in found if wanted in _parts(p.name)]
    if len(near) == 1:
        return near[0]
    if not near:
        for name in (question.name, question.name.upper()):
            if os.environ.get(name, "").isdigit():
                return Place(name, int(os.environ[name]))
    names = ", ".join(place.name for place in near or found) or "none"
    raise FerroError(
        f"--what-if {question.name}: the command line and the environment have "
        f"{'several such numbers' if near else 'no such number'} ({names}): name the one that is "
        "meant, and give the program a value for it"
    )


def largest(question: Question, first: int, fits: Callable[[int], bool]) -> int | None:
    """Returns the largest value from `low` to `high` that fits; None if `low` does not fit.

    Doubles or halves from `first`, then bisects: some 2 log2(largest / first) tries. Assumes that
    every smaller value also fits.
    """
    value = min(max(first, question.low), question.high)
    good, bad = question.low - 1, question.high + 1
    while bad - good > 1:
        if fits(value):
            good = value
            value = min(2 * value, question.high) if bad > question.high else (good + bad) // 2
        else:
            bad = value
            low = good if good >= question.low else 0
            value = max((low + bad) // 2, question.low)
    return good if good >= question.low else None


def what_if(child: Child, question: Question) -> Result:
    """Tries values in separate processes, until a program fails for another reason."""
    place = find_place(question, child.program)
    tries: list[Result] = []

    def fits(value: int) -> bool:
        say(f"trying {place.name} = {value} ...")
        result = place.run(child, value)
        tries.append({"value": value, **result})
        if _has_failed(result):
            raise _ProgramError
        return _fits(result)

    answer: Result = {"schema": 1, "name": place.name, "tries": tries, "largest": None}
    try:
        answer["largest"] = largest(question, place.value, fits)
        answer["exit_status"] = DOES_NOT_FIT
        best = next((each for each in tries if each["value"] == answer["largest"]), None)
        if best is not None:
            answer["exit_status"] = best["exit_status"]
    except _ProgramError:
        answer["exit_status"] = tries[-1]["exit_status"]
    return answer


class _ProgramError(Exception):
    """A try failed for another reason than memory, or a signal ended it."""


def _has_failed(result: Result) -> bool:
    is_stopped = result["partial"] in (INTERRUPTED, TERMINATED)
    return is_stopped or result["verdict"] not in (*FITTING, RAN_OUT)


def answer_of(question: Question, answer: Result) -> list[str]:
    """The table of tries, smallest first, and the answer."""
    tries = sorted(answer["tries"], key=lambda each: each["value"])
    card, name = tries[0]["card"], answer["name"]
    rows = [(name, "verdict", "card in use", "room")]
    for each in tries:
        used = size_text(_peaks(each)["peak_in_use_bytes"])
        verdict, room = _outcome(each)
        if each["verdict"] in FITTING and not _fits(each):
            verdict = "does not fit with all rows"
        rows.append((str(each["value"]), verdict, used, room))
    head = f"{card['name']}, {size_text(card['memory_bytes'])}, allocator {tries[0]['allocator']}"
    lines = ["", f"simulated {head}", *table(rows)]
    failed = [each for each in tries if _has_failed(each)]
    if failed and failed[0]["partial"]:
        ended = f"the run with {name} = {failed[0]['value']} was ended ({failed[0]['partial']})"
        lines.append(f"  {ended}: this report is partial")
    elif failed:
        lines += [f"  the program failed with {name} = {failed[0]['value']}:", *_said(failed[0])]
        lines += _refused.end_lines(failed[0])
    elif answer["largest"] is None:
        lines.append(f"  it does not fit even with {name} = {question.low}")
    else:
        bound = " (the upper bound)" if answer["largest"] == question.high else ""
        best = next(each for each in tries if each["value"] == answer["largest"])
        known = "" if best["verdict"] == FITS else " as far as known"
        lines.append(f"  the largest {name} that fits{known} is {answer['largest']}{bound}")
        lines += _certainty.lines_of(best) if known else []
    return lines
