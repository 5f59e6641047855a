"""How sure a verdict is: the values that determined it and that the simulated GPU did not compute.

A read of an uncomputed value makes a verdict unsure if it determined the size of a result, or if
the program learned an integer or a boolean: these are lengths, positions and branches. Among them
are those that follow from drawn choices, such as the experts of a router, those that follow from
random numbers that are not a card's, and floating-point numbers that reach a branch, an integer or
an index in the program's source. Other reads of floating-point numbers do not, because programs
print, log and average them; they are only listed. So are integers and booleans of which the source
proves that they are only shown. The rule errs where the source of a floating-point number's use is
missing, and where an integer is only shown in a way that the rule does not know.

A program that went on after an operator that the simulated GPU refused makes it unsure too, and one
whose memory is within the margin of cuDNN's choice of algorithms.
"""

from __future__ import annotations

from typing import Any

from ferro_alloc import sim
from ferro_alloc.fit import _refused, _workspaces
from ferro_alloc.sim._missing import MOST_NAMED, place_of, times

Result = dict[str, Any]

ROWS_VARIABLE = "FERRO_ALLOC_SIM_ROWS"
"""The assumption about masks and sizes that depend on unknown values; read by csrc/values."""
ROWS = ("zeros", "none", "all")
"""Its values: masks of unknown numbers, and the rows that follow from them, are those of zeros, or
masks are false everywhere and rows as few as possible, or masks are true and rows as many."""
ALONE = "-alone"
"""Behind "none" and "all": only rows are assumed, and masks are those of zeros."""
_TO_DO = "; what to do: docs/will-it-fit.md#how-sure-a-verdict-is"
OTHERWISE = (
    f"so it may have ended earlier or taken another way than on a card, or used less memory{_TO_DO}"
)
OR_FITS = f"so it may have taken another way than on a card, where it may need less memory{_TO_DO}"
"""What is unsure of a program that fits, and of one that ran out of memory."""
MOST_REACHED = 4
"""How many places that a number reached are named."""
AMOUNTS = {"fewest": "as few rows as possible", "most": "as many rows as possible"}
"""Of sizes that are not those of zeros, or are extremes of what there can be."""
STRENGTH = ("size", "integer", "float", "drawn")
"""What makes a verdict unsure, the most consequential first; numbers if they reach something."""


def uncomputed() -> list[Result]:
    """The reads of the active machine, as plain data, in the order of their first occurrence."""
    return [
        {
            "place": place_of(read),
            "operator": read.operator,
            "learned": read.learned,
            "reached": read.reached,
            "also_reached": list(read.also_reached),
            "count": read.count,
            "rows": read.rows,
            "drawn": read.drawn,
        }
        for read in sim.uncomputed_reads()
    ]


def last_read() -> str:
    """The place of the last read of uncomputed values; empty without one."""
    reads = sim.uncomputed_reads()
    last = max(reads, key=lambda read: read.last, default=None)
    return "" if last is None else place_of(last)


def has_sizes(result: Result) -> bool:
    """Whether sizes depended on values that were not computed."""
    return any(read["learned"] == "size" for read in result["uncomputed"])


def may_have_more_rows(result: Result) -> bool:
    """Whether another assumption gives more rows, or other masks that the program asked for."""
    return bool(_rows(result) & {"fewest", "zeros"})


def may_have_fewer_rows(result: Result) -> bool:
    return bool(_rows(result) & {"most", "zeros"})


def _rows(result: Result) -> set[str]:
    """Those of sizes, and of numbers and booleans that decide something."""
    return {
        read["rows"]
        for read in result["uncomputed"]
        if read["learned"] == "size"
        or (read["learned"] in ("integer", "float") and read["reached"])
    }


def is_sure(result: Result) -> bool:
    """Whether neither a size nor a branch depended on values that were not computed or on what was
    refused, and the memory is beyond the margin of cuDNN's algorithms."""
    depended = _depended(result) or _refused.went_on(result) or _workspaces.decides(result)
    return bool(result["values"]) and not depended


def lacks_surely(result: Result) -> bool:
    """Whether a program that ran out of memory would do so with every value: all sizes were the
    smallest possible, and no branch depended on uncomputed values or on what was refused."""
    if _refused.went_on(result) or _workspaces.decides(result):
        return False
    return bool(result["values"]) and all(
        read["learned"] == "size" and read["rows"] == "fewest" for read in _depended(result)
    )


def _depended(result: Result) -> list[Result]:
    """The reads that make the verdict unsure."""
    return [read for read in result["uncomputed"] if read["learned"] != "float" or read["reached"]]


def lines_of(result: Result) -> list[str]:
    """The places and the assumption for each, if the verdict is unsure, and what was refused."""
    lines = []
    if not result["values"]:
        lines.append(
            "  no values were computed (--no-values, --no-backing, or a mode other than eager), so "
            "the program read zeros, or what other tensors had left in the memory"
        )
    reads = _strongest(result)
    if reads:
        lines.append(
            "  the program depended on values that the simulated GPU does not compute, and that "
            "were assumed:"
        )
    for read in reads[:MOST_NAMED]:
        assumed = _assumed(read, result["rows"])
        lines.append(f"    {read['place']} ({times(read['count'])}): {assumed}")
    if len(reads) > MOST_NAMED:
        lines.append(f"    and at {len(reads) - MOST_NAMED} more lines")
    lines += _refused.lines_of(result)
    if lines and not result["out_of_memory"]:
        lines.append(f"  {OTHERWISE}")
    elif lines and not lacks_surely(result):
        lines.append(f"  {OR_FITS}")
    return lines


def decisive_places(result: Result) -> set[str]:
    """The places whose reads make the verdict unsure."""
    return {read["place"] for read in _depended(result)}


def _strongest(result: Result) -> list[Result]:
    """For each of these places what is most consequential, the most consequential first."""
    found: dict[str, Result] = {}
    for read in sorted(
        _depended(result),
        key=lambda read: STRENGTH.index(read["learned"]),
    ):
        first = found.setdefault(read["place"], {**read, "count": 0})
        if first["learned"] == read["learned"]:
            first["count"] += read["count"]
            first["rows"] = first["rows"] if first["rows"] in ("", read["rows"]) else "zeros"
            all_reached = dict.fromkeys([*_all_reached(first), *_all_reached(read)])
            first["reached"], *first["also_reached"] = all_reached or [""]
    return list(found.values())


def _all_reached(read: Result) -> list[str]:
    return [each for each in (read["reached"], *read.get("also_reached", ())) if each]


def _assumed(read: Result, rows: str) -> str:
    if read["learned"] == "size":
        return f"the size of a result, with {AMOUNTS.get(read['rows'], 'the rows of zeros')}"
    if read["learned"] == "drawn":
        what = (
            "what follows from choices (argmax, topk, multinomial) or numbers (poisson), drawn at "
            "random"
        )
    else:
        masks = {"none": "false", "all": "true"}.get(rows if read["rows"] else "")
        of = f"masks that are {masks}" if masks else "zeros"
        what = f"a number or a boolean, computed from {of}"
    return f"{what}; it reached {_enumerated(read)}" if read["reached"] else what


def _order(reached: str) -> tuple[str, int]:
    """By the file and the line, as in "the condition at train.py:8"."""
    file, _, line = reached.rpartition(" ")[2].rpartition(":")
    return (file, int(line) if line.isdigit() else 0)


def _enumerated(read: Result) -> str:
    """As in "the condition at train.py:8, the size at train.py:9 and 2 more"."""
    *named, last = sorted(_all_reached(read), key=_order)
    more = len(named) + 1 - MOST_REACHED
    if more > 0:
        named, last = [*named, last][:MOST_REACHED], f"{more} more"
    return f"{', '.join(named)} and {last}" if named else last
