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
from types import FrameType

from ferro_alloc.sim._follow import TOO_LONG, DecidesError, Follow
from ferro_alloc.sim._held import SHOWN, Given, Held, Outcome, Reached
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
    follow = Follow(source, function if is_called else None, None)
    try:
        parts = (
            follow.read(node, reads) if isinstance(reads, Held) else follow.received(node, reads)
        )
        return follow.run(parts) or follow.choice or SHOWN
    except DecidesError as error:
        return error.reached
    except RecursionError:  # too many functions to look at, so it may decide
        return TOO_LONG


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def reached(frame: FrameType, integers: bool = False) -> str:
    """The branch or size that the number reaches which the innermost call of `frame` reads, as in
    "the condition at train.py:8". Empty if there is none. Where it reads `integers`, their
    conversion to integers is none.

    Source that is odd or unknown is taken to show it. No failure reaches the program.
    """
    try:
        return _reached(frame, Held(integers=integers, whole=integers))
    except Exception:
        return ""


def _reached(frame: FrameType, reads: Reads) -> str:
    at: FrameType | None = frame
    while at is not None:
        use = _use_in(at, reads)
        if isinstance(use, Reached):
            return str(use)
        if not use:
            return ""
        reads = use
        at = _around(at)
        at = at.f_back if at is not None else None
    return ""


def _around(frame: FrameType) -> FrameType | None:
    """Of a comprehension, the frame of its function. None: it ended, and another runs it."""
    at: FrameType | None = frame
    while at is not None and at.f_code.co_name in COMPREHENSIONS:
        code, at = at.f_code, at.f_back
        while at is not None and code not in at.f_code.co_consts:
            at = at.f_back
    return at
