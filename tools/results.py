"""Results of steps of the tests: reading them from reports, and running a selection of tests."""

from __future__ import annotations

import os
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path


@dataclass(frozen=True)
class Result:
    """The result of one step. `skips` counts skipped tests by their reason; `alone` has the
    commands that run failed tests alone, as far as known."""

    name: str
    passed: int = 0
    failed: int = 0
    skips: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    alone: tuple[str, ...] = ()

    @property
    def skipped(self) -> int:
        return sum(self.skips.values())


def skip(name: str, reason: str) -> Result:
    return Result(name, skips=Counter({reason: 1}))


def add(left: Result, right: Result) -> Result:
    return replace(
        left,
        passed=left.passed + right.passed,
        failed=left.failed + right.failed,
        skips=left.skips + right.skips,
    )


def read_junit(name: str, report: Path, ok: bool) -> Result:
    """Counts in the report that GoogleTest and pytest write; `ok` is the program's own verdict."""
    passed = failed = 0
    skips: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif skipped is not None:
            # GoogleTest puts the location of the skip on a line before its text.
            skips[skipped.get("message", "").strip().splitlines()[-1]] += 1
        elif case.get("status") == "notrun":
            skips["disabled in its source"] += 1
        else:
            passed += 1
    if not ok and failed == 0:
        failed = 1
    return Result(name, passed, failed, skips)


def choose(what: str, known: Collection[str], named: Sequence[str]) -> list[str]:
    """The names given to a tool, else those in the variable called `what`, else all.

    Ends the program with status 2 if a name is unknown.
    """
    asked = list(named) or os.environ.get(what.upper(), "").split() or list(known)
    if unknown := [name for name in asked if name not in known]:
        print(f"expected {what} of {', '.join(known)}; got {', '.join(unknown)}", file=sys.stderr)
        sys.exit(2)
    return asked


def run_each(names: Sequence[str], test: Callable[[str], Result], title: str = "{}") -> Result:
    """Runs each test and prints a line for it; returns the sum of the results."""
    total = Result("all")
    for name in names:
        started = time.monotonic()
        result = test(name)
        seconds = time.monotonic() - started
        reasons = "".join(f"; skipped: {reason}" for reason in sorted(result.skips))
        print(f"{title.format(name)}: {counts(result)} ({seconds:.0f} s){reasons}", flush=True)
        total = add(total, result)
    return total


def finish(total: Result) -> int:
    """Prints the last line of a tool; returns its exit status."""
    print(counts(total), flush=True)
    return 1 if total.failed else 0


def counts(result: Result) -> str:
    return f"{result.passed} passed, {result.failed} failed, {result.skipped} skipped"
