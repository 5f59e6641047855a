"""Tests whose memory was not judged, by reason, as reports tell."""

from __future__ import annotations

from collections import Counter

import pytest

PROPERTY = "gpu_memory_not_judged"
_reasons: Counter[str] = Counter()


def see(report: pytest.TestReport) -> None:
    if report.when == "teardown":
        _reasons.update(str(value) for name, value in report.user_properties if name == PROPERTY)


def lines() -> list[str]:
    return [
        f"GPU memory not judged in {count} test{'' if count == 1 else 's'}: {reason}"
        for reason, count in sorted(_reasons.items())
    ]


def summarise(reporter: pytest.TerminalReporter) -> None:
    if _reasons:
        reporter.section("ferro_alloc")
        for line in lines():
            reporter.line(line)


def clear() -> None:
    _reasons.clear()
