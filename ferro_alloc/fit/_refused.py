"""Operators that the simulated GPU refused, because it lacks functions of their library.

A program that caught the error went another way than on a card. One that ended by it tells nothing
about the memory that it would have needed after that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ferro_alloc import sim
from ferro_alloc.sim._missing import ADVICE, MOST_NAMED, OTHERWISE, place_of, times

Result = dict[str, Any]


def refused(error: BaseException | None, place: str) -> list[Result]:
    """The refusals of the active machine whose errors the program got, as plain data. `error` ended
    the program at `place`."""
    said = {(str(each).splitlines() or [""])[0] for each in _chain(error)}
    found = [failure for failure in sim.library_failures() if failure.count]
    ends = [failure for failure in found if failure.message in said]
    ends = [failure for failure in ends if failure.place == place] or ends
    return [
        {
            "place": place_of(failure),
            "operator": failure.operator,
            "library": failure.library,
            "message": failure.message,
            "count": failure.count,
            "ended": failure in ends,
        }
        for failure in found
    ]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that it was raised from."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def end_of(result: Result) -> Result | None:
    """The refusal that ended the program."""
    return next((each for each in result["refused"] if each["ended"]), None)


def went_on(result: Result) -> list[Result]:
    """The refusals after which the program went on."""
    return [each for each in result["refused"] if each["count"] > each["ended"]]


def lines_of(result: Result) -> list[str]:
    """The places where the program went on."""
    found = went_on(result)
    if not found:
        return []
    lines = ["  the program went on after calls that the simulated GPU refused:"]
    for each in found[:MOST_NAMED]:
        count = times(each["count"] - each["ended"])
        lines.append(f"    {each['place']} ({count}): {_needs(each)} ({_advice(each)})")
    if len(found) > MOST_NAMED:
        lines.append(f"    and {len(found) - MOST_NAMED} more")
    return lines


def end_lines(result: Result) -> list[str]:
    """Why the program ended, if by a refusal."""
    end = end_of(result)
    return [] if end is None else [f"  {end['place']}: {_needs(end)} ({_advice(end)})"]


def _needs(each: Result) -> str:
    return f"{each['operator']} needs functions of {each['library']} that the simulated GPU lacks"


def _advice(each: Result) -> str:
    return ADVICE.get(each["library"], OTHERWISE)
