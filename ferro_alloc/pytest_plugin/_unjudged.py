"""Tests whose memory was not judged, by reason, as reports tell."""

from __future__ import annotations

from collections import Counter

import pytest

PROPERTY = "gpu_memory_not_judged"


class Unjudged:
    def __init__(self) -> None:
        self._reasons: Counter[str] = Counter()

    def see(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            properties = report.user_properties
            self._reasons.update(str(value) for name, value in properties if name == PROPERTY)

    def lines(self) -> list[str]:
        return [
            f"GPU memory not judged in {count} test{'' if count == 1 else 's'}: {reason}"
            for reason, count in sorted(self._reasons.items())
        ]

    def summarise(self, reporter: pytest.TerminalReporter) -> None:
        if self._reasons:
            reporter.section("ferro_alloc")
            for line in self.lines():
                reporter.line(line)
