"""Does a program turn a floating-point number that it reads into a branch or a size?

Most programs print such numbers, for example the loss, so a read says nothing. The source does:
`_follow` goes from the expression that reads through the source to a condition, an integer or an
index. This module takes what a function returns to the frame that called it. Integers and booleans
are followed only to name what they reach; `_harmless` tells whether they decide.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType

from ferro_alloc.sim._follow import (
    MOST_REACHED,
    TOO_LONG,
    DecidesError,
    EnoughError,
    Follow,
    Search,
    may_find_all,
)
from ferro_alloc.sim._held import SHOWN, Given, Held, Outcome, Part, Reached
from ferro_alloc.sim._sources import (
    Source,
    is_of_program,
    number_of,
    position_of,
    search_lock,
    source_of,
)

COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Functions whose caller is not the one that runs them."""

Returned = frozenset[Given]
"""What the call that a frame makes now returns."""

Reads = Held | Returned
"""What the innermost call reads, or what an outer call returns."""

_known: dict[tuple[str, int, int, Reads], Outcome] = {}
"""Equal code may be of different files."""


def _use_in(frame: FrameType, reads: Reads) -> Outcome:
    code = frame.f_code
    key = (code.co_filename, number_of(code), frame.f_lasti, reads)
    if key not in _known:
        with search_lock:
            if key not in _known:
                _known[key] = _found_use(frame, reads)
    return _known[key]


def _found_use(frame: FrameType, reads: Reads) -> Outcome:
    code = frame.f_code
    source = source_of(code.co_filename, frame.f_globals)
    if source is None:
        return SHOWN
    return _use_at(source, source.at(position_of(frame)), frame, reads)


def _use_at(source: Source, node: ast.AST | None, frame: FrameType, reads: Reads) -> Outcome:
    if node is None:
        return SHOWN
    follow = _follow_from(source, node, frame, None)
    try:
        return follow.run(_parts(follow, node, reads)) or follow.choice or SHOWN
    except DecidesError as error:
        return error.reached
    except RecursionError:  # too many functions to look at, so it may decide
        return TOO_LONG


def _parts(follow: Follow, node: ast.AST, reads: Reads) -> Iterator[Part]:
    """Where the number is after the call, or what else it reaches there."""
    yield from follow.read(node, reads) if isinstance(reads, Held) else follow.received(node, reads)


def _follow_from(source: Source, node: ast.AST, frame: FrameType, search: Search | None) -> Follow:
    function = source.function(node)
    at = _around(frame)
    callers = [
        each for each in _frames((at or frame).f_back) if is_of_program(each.f_code.co_filename)
    ]
    is_called = at is not None and not at.f_code.co_flags & LATER and bool(callers)
    is_called = is_called and isinstance(function, ast.FunctionDef)
    if not is_called:  # calls of its name are looked for, also in the files of these frames
        for each in callers:
            source_of(each.f_code.co_filename, each.f_globals)
    return Follow(source, function if is_called else None, search)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def reached(frame: FrameType, integers: bool = False) -> str:
    """The first of `all_reached`; empty if there is none."""
    return next(iter(all_reached(frame, integers)), "")


def all_reached(frame: FrameType, integers: bool = False) -> list[str]:
    """The branches and sizes that the number reaches which the innermost call of `frame` reads, as
    in "the condition at train.py:8". Where it reads `integers`, their conversion to integers is
    none. The first one decides; the search for further ones is short.

    Source that is odd or unknown is taken to show it. No failure reaches the program.
    """
    found: dict[str, None] = {}
    with suppress(Exception):
        for each in _all_reached(frame, Held(integers=integers, whole=integers)):
            found[str(each)] = None
    return list(found)[:MOST_REACHED]


def _all_reached(frame: FrameType, reads: Reads) -> Iterator[Reached]:
    at: FrameType | None = frame
    found = 0
    while at is not None and found < MOST_REACHED:
        use = _use_in(at, reads)
        if isinstance(use, Reached):
            yield use
            more, use = _more_in(at, reads)
            yield from more
            found += 1 + len(more)
        if not use:
            return
        reads = use
        at = _around(at)
        at = at.f_back if at is not None else None


_more: dict[tuple[str, int, int, Reads], tuple[list[Reached], Returned]] = {}


def _more_in(frame: FrameType, reads: Reads) -> tuple[list[Reached], Returned]:
    """All that is reached from a frame, and what its caller gets all the same."""
    code = frame.f_code
    key = (code.co_filename, number_of(code), frame.f_lasti, reads)
    if key not in _more:
        with search_lock:
            if key not in _more:
                _more[key] = _found_more(frame, reads) if may_find_all() else ([], SHOWN)
    return _more[key]


def _found_more(frame: FrameType, reads: Reads) -> tuple[list[Reached], Returned]:
    source = source_of(frame.f_code.co_filename, frame.f_globals)
    node = None if source is None else source.at(position_of(frame))
    if source is None or node is None:
        return [], SHOWN
    search = Search(finds_all=True)
    follow = _follow_from(source, node, frame, search)
    given = SHOWN
    with suppress(DecidesError, EnoughError, RecursionError):
        given = follow.run(_parts(follow, node, reads))
    return list(search.reached), given


def _around(frame: FrameType) -> FrameType | None:
    """Of a comprehension, the frame of its function. None: it ended, and another runs it."""
    at: FrameType | None = frame
    while at is not None and at.f_code.co_name in COMPREHENSIONS:
        code, at = at.f_code, at.f_back
        while at is not None and code not in at.f_code.co_consts:
            at = at.f_back
    return at
