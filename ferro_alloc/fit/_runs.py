"""Runs of the `simulate` command in separate processes: three allocators, or other values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ferro_alloc._errors import FerroError
from ferro_alloc._status import gib
from ferro_alloc._tables import table
from ferro_alloc.fit._allocators import ALLOCATORS
from ferro_alloc.fit._report import short_by
from ferro_alloc.fit._result import DOES_NOT_FIT, FITS, RAN_OUT, Result

LAST_LINES = 12
"""Number of stderr lines that are shown for a failed program."""
PLENTY = 16
"""Multiple of the card's memory in the run that finds out how much a program needs."""


@dataclass(frozen=True)
class Child:
    """A program, and the options of the command for it, without `--json`."""

    options: Sequence[str]
    program: Sequence[str]

    def run(self, *options: str, environ: Mapping[str, str] | None = None) -> Result:
        """Discards the program's stdout. Raises `FerroError` without a result."""
        with tempfile.TemporaryDirectory() as folder:
            found = Path(folder, "result.json")
            words = [*self.options, *options, "--json", str(found), *self.program]
            done = subprocess.run(
                [sys.executable, "-m", "ferro_alloc", "simulate", *words],
                env={**os.environ, **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
            if not found.exists():
                raise FerroError(f"the run ended with status {done.returncode}:\n{done.stderr}")
            result: Result = json.loads(found.read_text())
            if result["verdict"] not in (FITS, RAN_OUT):
                said = done.stderr.splitlines()
                end = next((i for i, line in enumerate(said) if line[:10] == "simulated "), None)
                result["stderr"] = said[:end][-LAST_LINES:]
            return result


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
        return RAN_OUT, f"short by {gib(missing)} or more" if missing else ""
    if result["verdict"] == FITS:
        return FITS, f"{gib(_peaks(result)['spare_bytes'])} to spare"
    return f"failed, status {result['program_status']}", ""


# ---- three allocators


def compare(child: Child, memory: int) -> Result:
    """Runs the program under each allocator in turn; once more with plenty of memory if it ran out.

    `memory` is the card's, in bytes.
    """
    runs: list[Result] = []
    for name in ALLOCATORS:
        say(f"running under {name} ...")
        result = child.run("--allocator", name)
        if result["verdict"] == RAN_OUT:
            say(f"it ran out: what would it need under {name}? ...")
            whole = child.run("--allocator", name, "--memory", f"{PLENTY * memory}b")
            if whole["verdict"] == FITS:
                result["needs_bytes"] = _peaks(whole)["peak_in_use_bytes"]
        runs.append(result)
    fitting = [run for run in runs if run["verdict"] == FITS]
    failed = [run["exit_status"] for run in runs if run["verdict"] not in (FITS, RAN_OUT)]
    status = 0 if fitting else failed[0] if failed else DOES_NOT_FIT
    return {"schema": 1, "runs": runs, "exit_status": status}


def comparison(result: Result) -> list[str]:
    """The table, and the last stderr lines of programs that failed for another reason."""
    runs = result["runs"]
    card = runs[0]["card"]
    rows = [("allocator", "verdict", "peak reserved", "peak in use", "room")]
    for run in runs:
        verdict, room = _outcome(run)
        peaks = _peaks(run)
        if "needs_bytes" in run:
            room = f"needs {gib(run['needs_bytes'])}"
        reserved, used = gib(peaks["peak_reserved_bytes"]), gib(peaks["peak_in_use_bytes"])
        rows.append((run["allocator"], verdict, reserved, used, room))
    lines = ["", f"simulated {card['name']}, {gib(card['memory_bytes'])}", *table(rows)]
    fits = [run["allocator"] for run in runs if run["verdict"] == FITS]
    lines.append(f"  it fits under {', '.join(fits) if fits else 'none of them'}")
    return lines + [line for run in runs for line in _said(run)]


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
        return Child(child.options, self.put(child.program, value)).run(environ=environ)


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
        if result["verdict"] not in (FITS, RAN_OUT):
            raise _ProgramError
        return bool(result["verdict"] == FITS)

    answer: Result = {"schema": 1, "name": place.name, "tries": tries, "largest": None}
    try:
        answer["largest"] = largest(question, place.value, fits)
        answer["exit_status"] = DOES_NOT_FIT if answer["largest"] is None else 0
    except _ProgramError:
        answer["exit_status"] = tries[-1]["exit_status"]
    return answer


class _ProgramError(Exception):
    """A try failed for another reason than memory."""


def answer_of(question: Question, answer: Result) -> list[str]:
    """The table of tries, smallest first, and the answer."""
    tries = sorted(answer["tries"], key=lambda each: each["value"])
    card, name = tries[0]["card"], answer["name"]
    rows = [(name, "verdict", "peak in use", "room")]
    for each in tries:
        used = gib(_peaks(each)["peak_in_use_bytes"])
        rows.append((str(each["value"]), *_outcome(each)[:1], used, _outcome(each)[1]))
    head = f"{card['name']}, {gib(card['memory_bytes'])}, allocator {tries[0]['allocator']}"
    lines = ["", f"simulated {head}", *table(rows)]
    failed = [each for each in tries if each["verdict"] not in (FITS, RAN_OUT)]
    if failed:
        lines += [f"  the program failed with {name} = {failed[0]['value']}:", *_said(failed[0])]
    elif answer["largest"] is None:
        lines.append(f"  it does not fit even with {name} = {question.low}")
    else:
        bound = " (the upper bound)" if answer["largest"] == question.high else ""
        lines.append(f"  the largest {name} that fits is {answer['largest']}{bound}")
    return lines
