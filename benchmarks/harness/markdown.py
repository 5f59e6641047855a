"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] + ["---:"] * (len(headings) - 1), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
