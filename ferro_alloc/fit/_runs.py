"""Runs of the `simulate` command in separate processes: three allocators, or other values."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from ferro_alloc._errors import FerroError
from ferro_alloc._status import size_text
from ferro_alloc._tables import table
from ferro_alloc.fit import _certainty, _misplaced, _refused, _workspaces
from ferro_alloc.fit._allocators import ALLOCATORS
from ferro_alloc.fit._lost import LostError, ending
from ferro_alloc.fit._range import EXTRA_RUNS
from ferro_alloc.fit._report import (
    TOO_TIGHT,
    UNUSED,
    WENT_ON,
    WITHOUT_VALUES,
    end_by_value,
    how_to_use,
    is_end_without_values,
    is_same,
    memory_text,
    range_of,
)
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
from ferro_alloc.fit._shortage import is_limited, short_by
from ferro_alloc.fit._stopping import (
    INTERRUPTED,
    STATUS,
    TERMINATED,
    TIME_LIMIT,
    Stopped,
    note_received,
    received,
)
from ferro_alloc.sim._missing import ABOUT_CALLS, NOTHING_MISSING, SHOWN, SHOWN_DRAWN

COLUMNS = {"all": "with all rows", "none": "with the fewest rows"}
"""The heads of the columns of runs with other rows."""
NO_INPUT = (
    "a program that runs several times gets stdin only from a file: simulate ... train.py < file"
)
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
        """Discards the program's output, or passes it on. Raises `LostError` without a result."""
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
                raise LostError(status, _last_lines(said))
            result: Result = json.loads(found.read_text())
            if result["verdict"] not in (*FITTING, RAN_OUT):
                result["stderr"] = _last_lines(said[:end])
            if (reason := received()) and not result["partial"]:
                # It came too late for this run.
                result["partial"], result["exit_status"] = reason, STATUS[reason]
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
            stdin=_stdin(),
            stdout=None if shows_output else subprocess.DEVNULL,
            stderr=stderr,
        )
        status = None
        while status is None:
            try:
                status = process.wait()
            except KeyboardInterrupt:
                note_received(INTERRUPTED)
                # A terminal sends it to the run too, which ignores it while it reports.
                process.send_signal(signal.SIGINT)
            except Stopped:
                note_received(TERMINATED)
                process.send_signal(signal.SIGTERM)
        stderr.seek(0)
        return status, stderr.read().decode(errors="replace")


def _stdin() -> int:
    """For each run from its beginning, if the shell redirected it to a file; else nothing."""
    try:
        if stat.S_ISREG(os.fstat(0).st_mode):
            os.lseek(0, 0, os.SEEK_SET)
            return 0
    except OSError:  # it is closed
        pass
    return subprocess.DEVNULL


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
        known = "" if _certainty.lacks_surely(result) else " as far as known"
        if result.get("went_on"):
            return RAN_OUT + known, f"caught it ({result['out_of_memory']['count']} x), went on"
        return RAN_OUT + known, f"short by {size_text(missing)} or more" if missing else ""
    if result["verdict"] in FITTING:
        return result["verdict"], f"{size_text(_peaks(result)['spare_bytes'])} to spare"
    spare = f"{size_text(_peaks(result)['spare_bytes'])} to spare until then"
    room = spare if result["gpu_used"] else ""
    if result["partial"]:
        return result["partial"], room
    if end := _refused.end_of(result):
        return f"not known: no {end['library']}", room
    # 14 if the end may come from a value that was not computed.
    return f"failed, status {result['exit_status']}", room


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
        result = _run_until_signal(child, "--allocator", name, *options, shows_output=name in shown)
        if result is None:
            if not runs:
                raise FerroError(f"the comparison was ended ({received()}) without a result")
            break
        runs.append(result)
        if result["partial"] in (INTERRUPTED, TERMINATED):
            break
        if result["verdict"] == RAN_OUT:
            say(f"it ran out: what would it need under {name}? ...")
            # Without further runs, unless the command chose the rows.
            rows = [] if any(o.startswith("--rows=") for o in child.options) else ["--rows=zeros"]
            plenty = ("--allocator", name, "--memory", f"{PLENTY * memory}b", *rows)
            whole = _run_until_signal(child, *plenty)
            if whole is None:
                break
            if whole["verdict"] in FITTING:
                result["needs_bytes"] = _peaks(whole)["peak_in_use_bytes"]
            if whole["partial"] in (INTERRUPTED, TERMINATED):
                result["partial"] = whole["partial"]
                break
    verdicts = [run["verdict"] for run in runs]
    failed = [run["exit_status"] for run in runs if run["verdict"] not in (*FITTING, RAN_OUT)]
    if FITS in verdicts:
        status = 0
    elif AS_FAR_AS_KNOWN in verdicts:
        status = FITS_AS_FAR_AS_KNOWN
    else:
        status = failed[0] if failed else DOES_NOT_FIT
    partial = received() or runs[-1]["partial"]
    if partial in (INTERRUPTED, TERMINATED):
        status = STATUS[partial]
    return {"schema": 1, "runs": runs, "partial": partial, "exit_status": status}


def _run_until_signal(child: Child, *options: str, shows_output: bool = False) -> Result | None:
    """None if a signal to this command left the run without a result."""
    try:
        return child.run(*options, shows_output=shows_output)
    except LostError:
        if not received():
            raise
    except KeyboardInterrupt:
        note_received(INTERRUPTED)
    except Stopped:
        note_received(TERMINATED)
    return None


def conclusions(runs: Sequence[Result]) -> list[str]:
    """Under which allocators it fits, as lines."""
    if not any(run["gpu_used"] or run["verdict"] not in FITTING for run in runs):
        return [f"{UNUSED}. {how_to_use()}"]
    lines = []
    fits = [run["allocator"] for run in runs if run["verdict"] == FITS]
    known = [run["allocator"] for run in runs if run["verdict"] == AS_FAR_AS_KNOWN]
    unknown = [run["allocator"] for run in runs if run["verdict"] == UNKNOWN]
    if fits or not (known or unknown):
        lines.append(f"it fits under {', '.join(fits) if fits else 'none of them'}")
    if known:
        lines.append(f"it fits as far as known under {', '.join(known)}")
    if unknown:
        lines.append(f"it did not run to its end under {', '.join(unknown)}")
    return [*lines, *_caught(runs)]


def _caught(runs: Sequence[Result]) -> list[str]:
    """Under which allocators it ran out of memory, and went on to its end all the same."""
    return [
        f"{said} under {', '.join(run['allocator'] for run in which)}"
        for said, which in _by_limit(runs)
    ]


def _by_limit(runs: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    """The runs that went on, and what to say of them."""
    found: dict[str, list[Result]] = {}
    for run in runs:
        if run.get("went_on"):
            where = " in its own limit" if is_limited(run["out_of_memory"]) else ""
            said = f"it ran out of memory{where}, caught the error and went on to its end"
            found.setdefault(said, []).append(run)
    return list(found.items())


def _advice(runs: Sequence[Result]) -> list[str]:
    return [f"  {WENT_ON}"] if any(run.get("went_on") for run in runs) else []


def comparison(result: Result) -> list[str]:
    """Where it fits, the table, how sure it is, and the last stderr lines of programs that failed
    for another reason."""
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
        rows.append((*row, *(_with_rows(run, run[other.key]) for other in extra)))
    title = f"simulated {card['name']}, {memory_text(card)}"
    lines = ["", title, *(f"  {line}" for line in conclusions(runs)), "", *table(rows), ""]
    lines += remarks(runs)
    if cut := [run["allocator"] for run in runs if run["partial"] == TIME_LIMIT]:
        under = ", ".join(cut)
        lines.append(f"  the time limit ended the program under {under}: this report is partial")
    elif result["partial"]:
        lines.append(f"  the comparison was ended ({result['partial']}): this report is partial")
    lines += dict.fromkeys(line for run in runs for line in _ends(run))
    if any(run["error"].startswith("EOFError") for run in runs):
        lines.append(f"  {NO_INPUT}")
    ends: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        ends.setdefault(tuple(_said(run)), []).append(run["allocator"])
    for text, names in ends.items():
        lines += [f"  its last lines under {', '.join(names)}:", *text] if text else []
    lines += _not_simulated(runs)
    lines += _misplaced.lines_of(runs[0].get("misplaced", []))
    return lines if lines[-1] else lines[:-1]


def remarks(runs: Sequence[Result]) -> list[str]:
    """Below the table: what the verdicts depend on."""
    unsure = next((run for run in runs if not _certainty.is_sure(run)), None)
    lines = [] if unsure is None else _certainty.lines_of(unsure)
    lines += _workspaces.lines_of(_workspaces.most_derived(runs))
    if any(run["tight"] for run in runs):
        lines.append(f"  {TOO_TIGHT}")
    return [*lines, *_advice(runs)]


def _not_simulated(runs: Sequence[Result]) -> list[str]:
    """The lines about kernels and calls; of programs that failed also those about numbers that seem
    to decide nothing. `remarks` names the values that decide."""
    is_failed = any(run["verdict"] == UNKNOWN for run in runs)
    shown = (*ABOUT_CALLS, *((SHOWN, SHOWN_DRAWN) if is_failed else ()))
    lines = dict.fromkeys(line for run in runs for line in run["not_simulated"])
    return [f"  {line}" for line in lines if line != NOTHING_MISSING and line.startswith(shown)]


def _with_rows(first: Result, result: Result | None) -> str:
    """The cell of a run with other rows than the first one."""
    if result is None:
        return ""
    used = size_text(_peaks(result)["peak_in_use_bytes"])
    if is_same(first, result):
        return "the same"
    if result["verdict"] == UNKNOWN:
        return f"ended early, {used} in use until then"
    of_zeros = ", masks as of zeros" if result.get("instead_of") else ""
    return f"{_outcome(result)[0]}, {used} in use{of_zeros}"


def _ends(result: Result) -> list[str]:
    """Why the end of a program may be none on a card."""
    by_value = [f"  {end_by_value(result)}"] if result["ended_by"] else []
    by_value += [f"  {WITHOUT_VALUES}"] if is_end_without_values(result) else []
    return [*_refused.end_lines(result), *by_value]


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
        for name in dict.fromkeys((question.name, question.name.upper(), wanted, wanted.upper())):
            if os.environ.get(name, "").isdigit():
                return Place(name, int(os.environ[name]))
    names = ", ".join(place.name for place in near or found)
    asked = f"--what-if {question.name}"
    if near:
        raise FerroError(
            f"{asked}: the program has several such numbers ({names}): name one in full"
        )
    other = next((_word(i, program) for i in range(len(program)) if _names(program[i], wanted)), "")
    if other:
        raise FerroError(f"{asked}: the program's {other} is no whole number, as in 8")
    variable = wanted.upper()
    start = " ".join(program[:2] if program[0] == "-m" else program[:1])
    there = f"its arguments with numbers are {names}" if found else "it has none with a number"
    raise FerroError(
        f"{asked}: no argument of the program has this name and a whole number ({there}), and the "
        f"environment has no variable {variable} with one. Give the program one that it reads, as "
        f"in {start} --{question.name.strip('-')} 8, or set {variable}=8"
    )


def _names(word: str, wanted: str) -> bool:
    name = word.partition("=")[0]
    return (word.startswith("-") or "=" in word) and wanted in (_plain(name), *_parts(name))


def _word(index: int, program: Sequence[str]) -> str:
    """The argument with its value."""
    word, after = program[index], [*program[index + 1 : index + 2], ""][0]
    return word if "=" in word or after.startswith("-") else f"{word} {after}".strip()


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


class _Search:
    """The tries of a question."""

    def __init__(self, question: Question, place: Place, child: Child) -> None:
        self.tries: list[Result] = []
        self.lost: Result | None = None
        """The run that ended without a result, and with it the search."""
        self.is_endless = False
        """Whether nothing changes any more, up to the upper bound."""
        self._high = question.high
        self._place = place
        self._child = child
        self._has_looked = False

    def fits(self, value: int) -> bool:
        """Raises `_EndError` at the end of the search."""
        for known in self.tries:
            if known["value"] == value:
                return _fits(known)
        try:
            result = self._run(value)
        except LostError as error:
            if not self.tries:
                raise
            self._lose(value, error)
        earlier = list(self.tries)
        self._add(value, result)
        if _has_failed(result) or not (result["gpu_used"] or result["out_of_memory"]):
            raise _EndError
        if any(2 * each["value"] <= value and _is_same(each, result) for each in earlier):
            self._look_at_the_end(value, result)
        return _fits(result)

    def _lose(self, value: int, error: LostError) -> NoReturn:
        self.lost = {"value": value, "status": error.status, "stderr": error.said}
        raise _EndError from error

    def _look_at_the_end(self, value: int, result: Result) -> None:
        """Ends the search if the upper bound gives the same. It need not: a program may round its
        value up. If that run fails, the search goes on as without it."""
        if self._has_looked:
            return
        self._has_looked = True
        last = result
        if value < self._high:
            try:
                last = self._run(self._high)
            except LostError as error:
                if not received():
                    return
                self._lose(self._high, error)
            if last["partial"] in (INTERRUPTED, TERMINATED):
                self._add(self._high, last)
                raise _EndError
            if _has_failed(last):
                return
            self._add(self._high, last)
        self.is_endless = _is_same(last, result)
        if self.is_endless:
            raise _EndError

    def _run(self, value: int) -> Result:
        say(f"trying {self._place.name} = {value} ...")
        return self._place.run(self._child, value)

    def _add(self, value: int, result: Result) -> None:
        self.tries.append({"value": value, **result})


def what_if(child: Child, question: Question) -> Result:
    """Tries values in separate processes, until a program fails for another reason."""
    place = find_place(question, child.program)
    search = _Search(question, place, child)
    found, is_complete = None, True
    try:
        found = largest(question, place.value, search.fits)
    except _EndError:
        found = question.high if search.is_endless else None
        is_complete = search.is_endless
    tries = search.tries
    by_value = {each["value"]: each for each in tries}
    best, more = (by_value.get((found or 0) + n) for n in (0, 1))
    answer: Result = {
        "schema": 1,
        "name": place.name,
        "tries": tries,
        "largest": found,
        "unchanged_from": None if best is None else _unchanged_from(tries),
        "sure": False,
        "lost_run": search.lost,
        "exit_status": DOES_NOT_FIT if best is None else best["exit_status"],
    }
    if not is_complete:
        answer["exit_status"] = 1 if search.lost else tries[-1]["exit_status"]
        if reason := received():
            answer["exit_status"] = STATUS[reason]
        return answer
    # Without one that fits, the lowest value decides.
    decisive = (best, more) if best else (by_value[min(by_value)],)
    answer["sure"] = all(each["sure"] for each in decisive if each)
    return answer


def _is_same(one: Result, other: Result) -> bool:
    """Whether two tries both fit and made the same requests, so that the value changes nothing."""
    return _fits(one) and _fits(other) and _requests(one) == _requests(other)


def _requests(result: Result) -> list[list[int]]:
    """Of each device, also with all rows."""
    keys = ("peak_in_use_bytes", "peak_allocated_bytes", "allocations", "allocated_bytes")
    runs = [result, *([result["all_rows"]] if result["all_rows"] else [])]
    return [[device[key] for key in keys] for run in runs for device in run["devices"]]


def _unchanged_from(tries: Sequence[Result]) -> int | None:
    """The smallest value from which on the peak no longer grows, up to the largest; None if it
    grows, or a try does not fit."""
    known = sorted(tries, key=lambda each: int(each["value"]))
    used = [_peaks(each)["peak_in_use_bytes"] for each in known]
    same = [each for each, peak in zip(known, used, strict=True) if peak == used[-1]]
    if len(same) < 2 or used[-len(same) :].count(used[-1]) < len(same):
        return None
    return int(same[0]["value"]) if all(map(_fits, known)) else None


class _EndError(Exception):
    """The search ends: a try failed for another reason than memory, a signal ended it, it used no
    GPU, or the value changes nothing any more."""


def _has_failed(result: Result) -> bool:
    is_stopped = result["partial"] in (INTERRUPTED, TERMINATED)
    return is_stopped or result["verdict"] not in (*FITTING, RAN_OUT)


def answer_of(question: Question, answer: Result) -> list[str]:
    """The answer, the table of tries, smallest first, and how sure it is."""
    tries = sorted(answer["tries"], key=lambda each: each["value"])
    card, name = tries[0]["card"], answer["name"]
    has_more = any(each["all_rows"] for each in tries)
    rows = [(name, "verdict", "card in use", "room", *([COLUMNS["all"]] if has_more else []))]
    for each in tries:
        used = size_text(_peaks(each)["peak_in_use_bytes"])
        verdict, room = _outcome(each)
        if each["verdict"] in FITTING and not _fits(each):
            verdict = "does not fit with all rows"
        row = (str(each["value"]), verdict, used, room)
        rows.append((*row, *([_with_rows(each, each["all_rows"])] if has_more else [])))
    head = f"{card['name']}, {memory_text(card)}, allocator {tries[0]['allocator']}"
    said, more = _answer(question, answer)
    for what, which in _by_limit(tries):
        values = ", ".join(str(each["value"]) for each in which)
        more.append(f"  {what} with {name} = {values}")
    more += _advice(tries)
    more += _misplaced.lines_of(tries[0].get("misplaced", []))
    return ["", f"simulated {head}", f"  {said}", "", *table(rows), *more]


def _answer(question: Question, answer: Result) -> tuple[str, list[str]]:
    """The line of the answer, and those below the table."""
    tries, name, lost = answer["tries"], answer["name"], answer["lost_run"]
    last = tries[-1]
    if lost or _has_failed(last):
        value = lost["value"] if lost else last["value"]
        fitted = [each["value"] for each in tries if _fits(each)]
        before = f"; the largest that fitted before is {max(fitted)}" if fitted else ""
        if lost:
            more = [f"    {line}" for line in lost["stderr"]]
            return f"the run with {name} = {value} {ending(lost['status'])}{before}", more
        if last["partial"]:
            ended = f"the run with {name} = {value} was ended ({last['partial']})"
            return f"{ended}: this report is partial{before}", []
        more = [*_said(last), *_ends(last)]
        more += [f"  {NO_INPUT}"] if last["error"].startswith("EOFError") else []
        return f"the program failed with {name} = {value}{before}", more
    if not (last["gpu_used"] or last["out_of_memory"]):
        return f"{UNUSED}. {how_to_use()}", []
    known = "" if answer["sure"] else " as far as known"
    if answer["largest"] is None:
        lowest = min(tries, key=lambda each: int(each["value"]))
        lines = [] if answer["sure"] else _certainty.lines_of(lowest) + range_of(lowest)
        lines += _workspaces.lines_of(lowest)
        return f"it does not fit{known} even with {name} = {question.low}", lines
    by_value = {each["value"]: each for each in tries}
    best, next_one = (by_value.get(answer["largest"] + n) for n in (0, 1))
    assert best is not None
    unsure = next((each for each in (best, next_one) if each and not each["sure"]), None)
    lines = [] if unsure is None else range_of(unsure) + _certainty.lines_of(unsure)
    lines += _workspaces.lines_of(unsure or best)
    lines += [f"  {TOO_TIGHT}"] if best["tight"] else []
    bound = " (the upper bound)" if answer["largest"] == question.high else ""
    if start := answer["unchanged_from"]:
        return (
            f"every {name} up to {answer['largest']}{bound} fits{known}: from {start} on the peak "
            "no longer grows, so the program may have no more data, limit the value, or not read "
            "it",
            lines,
        )
    return f"the largest {name} that fits{known} is {answer['largest']}{bound}", lines
