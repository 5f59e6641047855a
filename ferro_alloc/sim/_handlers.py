"""Would the program go on if the call that it makes now raised an error of a matrix?"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FrameType

from ferro_alloc.sim._sources import (
    Source,
    is_of_program,
    is_of_torch,
    name_of,
    number_of,
    position_of,
    source_of,
)
from ferro_alloc.sim._variables import FUNCTIONS

UNRELATED = {"KeyboardInterrupt", "SystemExit", "GeneratorExit", "StopIteration", "ImportError"}
UNRELATED |= {"ModuleNotFoundError", "OSError", "IOError", "FileNotFoundError", "EOFError"}
UNRELATED |= {"TimeoutError", "LookupError", "KeyError", "IndexError", "ValueError", "TypeError"}
UNRELATED |= {"AttributeError", "NameError", "AssertionError", "ArithmeticError"}
UNRELATED |= {"ZeroDivisionError", "OverflowError", "MemoryError", "OutOfMemoryError"}
"""Not `torch.linalg.LinAlgError`, nor a class that it derives from."""
ENDS = {"exit", "_exit", "abort", "quit"}

_known: dict[tuple[str, int, int], str] = {}


def handler_around(frame: FrameType | None) -> str:
    """The innermost handler or `suppress` that would catch such an error, as in "the handler at
    train.py:8"; empty if there is none after which the program goes on.

    No failure reaches the program.
    """
    try:
        while frame is not None:
            file = frame.f_code.co_filename
            key = (file, number_of(frame.f_code), frame.f_lasti)
            if key not in _known:
                _known[key] = _handler_in(frame) if _may_handle(file) else ""
            if _known[key]:
                return _known[key]
            frame = frame.f_back
    except Exception:
        pass
    return ""


def _may_handle(file: str) -> bool:
    """Is it of the program or an installed package, but for PyTorch and this package?"""
    is_installed = "-packages/" in file and "/ferro_alloc/" not in file
    return is_of_program(file) or (is_installed and not is_of_torch(file))


def _handler_in(frame: FrameType) -> str:
    source = source_of(frame.f_code.co_filename, frame.f_globals)
    node = None if source is None else source.at(position_of(frame))
    if source is None or node is None:
        return ""
    catching = next(_catching(source, node), None)
    return "" if catching is None else f"the handler at {source.place(catching)}"


def _catching(source: Source, node: ast.AST) -> Iterator[ast.AST]:
    """Within the node's function, from the innermost on."""
    while not isinstance(node, (*FUNCTIONS, ast.Module)):
        parent = source.parents[node]
        match parent:
            case ast.Try(body=body, handlers=handlers) if node in body and _goes_on(source, parent):
                yield from filter(_catches, handlers)
            case ast.With(items=items, body=body) if node in body:
                calls = [each.context_expr for each in items]
                yield from (
                    call
                    for call in calls
                    if isinstance(call, ast.Call)
                    and name_of(call.func) == "suppress"
                    and any(map(_is_related, call.args))
                )
        node = parent


def _catches(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    ends = isinstance(last, ast.Raise) or (
        isinstance(last, ast.Expr)
        and isinstance(last.value, ast.Call)
        and name_of(last.value.func) in ENDS
    )
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return not ends and any(map(_is_related, types))


def _is_related(kind: ast.expr | None) -> bool:
    return kind is None or name_of(kind) not in UNRELATED


def _goes_on(source: Source, handled: ast.Try) -> bool:
    """Is it not the last statement of a module?"""
    node: ast.AST = handled
    while isinstance(parent := source.parents[node], ast.If | ast.Module):
        if parent.body[-1] is not node and getattr(parent, "orelse", [None])[-1:] != [node]:
            return True
        if isinstance(parent, ast.Module):
            return False
        node = parent
    return True
