"""How sure a verdict is: the values that determined it and that the simulated GPU did not compute.

A read of an uncomputed value makes a verdict unsure if it determined the size of a result, or if
the program learned an integer or a boolean: these are lengths, positions and branches. Among them
are those that follow from drawn choices, such as the experts of a router. A read of floating-point
numbers does not, because programs print, log and average them; it is only listed.
The rule errs where a program branches on such a number, and where it only prints an integer.
"""

from __future__ import annotations

from typing import Any

from ferro_alloc import sim
from ferro_alloc.sim._missing import DRAWN, enumerate_places

Result = dict[str, Any]

ROWS_VARIABLE = "FERRO_ALLOC_SIM_ROWS"
"""The assumption about sizes that depend on unknown values; read by csrc/values."""
ROWS = ("none", "all")
"""Its values: as few rows as possible (`unique` of some elements has one), or as many."""


def uncomputed() -> list[Result]:
    """The reads of the active machine, as plain data, in the order of their first occurrence."""
    return [
        {
            "place": read.place or f"outside of Python, in {read.operator}",
            "operator": read.operator,
            "learned": read.learned,
            "count": read.count,
        }
        for read in sim.uncomputed_reads()
    ]


def last_read() -> str:
    """The place of the last read of uncomputed values; empty without one."""
    reads = sim.uncomputed_reads()
    last = max(reads, key=lambda read: read.last, default=None)
    return "" if last is None else last.place or f"outside of Python, in {last.operator}"


def has_sizes(result: Result) -> bool:
    """Whether sizes depended on values that were not computed."""
    return any(read["learned"] == "size" for read in result["uncomputed"])


def is_sure(result: Result) -> bool:
    """Whether neither a size nor a branch depended on values that were not computed."""
    reads = result["uncomputed"]
    return bool(result["values"]) and all(read["learned"] == "float" for read in reads)


def lacks_surely(result: Result) -> bool:
    """Whether a program that ran out of memory would do so with every value: it made the smallest
    assumption about sizes, and no branch depended on uncomputed values."""
    harmless = ("float",) if result["rows"] == "all" else ("float", "size")
    return bool(result["values"]) and all(
        read["learned"] in harmless for read in result["uncomputed"]
    )


def lines_of(result: Result) -> list[str]:
    """The places and the assumption for each, if the verdict is unsure."""
    lines = []
    if not result["values"]:
        lines.append(
            "  values were off, so it is unknown whether sizes or branches depended on them"
        )
    if sizes := _places(result, "size"):
        assumed = "as many" if result["rows"] == "all" else "as few"
        lines.append(
            f"  sizes depended on values that were not computed; assumed {assumed} rows as "
            f"possible: {sizes}"
        )
    if integers := _places(result, "integer"):
        lines.append(
            "  integers or booleans that were not computed were read, as zeros or valid "
            f"positions: {integers}"
        )
    if drawn := _places(result, "drawn"):
        lines.append(f"  {DRAWN}: {drawn}")
    return lines


def _places(result: Result, learned: str) -> str:
    counts: dict[str, int] = {}
    for read in result["uncomputed"]:
        if read["learned"] == learned:
            counts[read["place"]] = counts.get(read["place"], 0) + read["count"]
    return enumerate_places(counts)
