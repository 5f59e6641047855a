"""Records of the benchmarks: dataclasses whose `problem` is empty after a success."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def store(records: Sequence[Any], output: Path | None) -> None:
    """Stores records as JSON, also after each part, so that they exist if time runs out."""
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps([asdict(record) for record in records], indent=1)
        output.write_text(text + "\n")


def print_table(title: str, headings: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Prints a table whose first two columns are names and the others numbers."""
    table = Table(*headings[:2], title=title)
    for heading in headings[2:]:
        table.add_column(heading, justify="right")
    for line in lines:
        table.add_row(*line)
    Console().print(table)


def report_problems(records: Sequence[Any]) -> int:
    """Prints the problems; returns the exit status."""
    problems = [record.problem for record in records if record.problem]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0
