"""What a step of the tests did, and how it is read from the reports of GoogleTest and pytest."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path


@dataclass(frozen=True)
class Result:
    """What one step did. `skips` counts tests by the reason for which they did not run."""

    name: str
    passed: int = 0
    failed: int = 0
    skips: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

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
            # GoogleTest puts the place of the skip on a line before its text.
            skips[skipped.get("message", "").strip().splitlines()[-1]] += 1
        elif case.get("status") == "notrun":
            skips["disabled in its source"] += 1
        else:
            passed += 1
    if not ok and failed == 0:
        failed = 1
    return Result(name, passed, failed, skips)
