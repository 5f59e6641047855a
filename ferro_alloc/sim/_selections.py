"""Does a tensor read an integer on the card only to choose one place along a dimension?"""

from __future__ import annotations

import ast
from types import FrameType

from ferro_alloc.sim._sources import position_of, source_of

OPERATIONS = {"BINARY_SUBSCR", "STORE_SUBSCR", "BINARY_OP"}


def selects_one(frame: FrameType, operation: str) -> bool:
    """Whether the current instruction of `frame`, which is `operation`, is `tensor[i]` or
    `tensor[i] = x`, and no bound of a slice in it can be the integer that is read.

    No size depends on `i` then.
    """
    if operation not in OPERATIONS:
        return False
    source = source_of(frame.f_code.co_filename, frame.f_globals)
    node = None if source is None else source.spanning(position_of(frame))
    if not isinstance(node, ast.Subscript) or not _is_tensor(_value(node.value, frame)):
        return False
    indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    bounds = [
        bound
        for index in indices
        for part in ast.walk(index)
        if isinstance(part, ast.Slice)
        for bound in (part.lower, part.upper, part.step)
    ]
    # A variable may be the slice.
    whole = [index for index in indices if not isinstance(index, ast.Slice)]
    return all(map(_is_constant, bounds)) and all(_is_number(index, frame) for index in whole)


def _is_number(index: ast.expr, frame: FrameType) -> bool:
    """Is it a number or a tensor?"""
    if isinstance(index, ast.BinOp):
        return _is_number(index.left, frame) and _is_number(index.right, frame)
    value = _value(index, frame)
    return _is_constant(index) or _is_tensor(value) or isinstance(value, int)


def _value(node: ast.expr, frame: FrameType) -> object:
    """Of a variable, or of an attribute that no code computes; else None."""
    match node:
        case ast.Name(id=name):
            return frame.f_locals.get(name, frame.f_globals.get(name))
        case ast.Attribute(value=ast.Name() as of, attr=name):
            kept = getattr(_value(of, frame), "__dict__", {})
            named = [kept, kept.get("_parameters") or {}, kept.get("_buffers") or {}]
            return next((names[name] for names in named if name in names), None)
    return None


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _is_constant(node: ast.expr | None) -> bool:
    match node:
        case None | ast.Constant():
            return True
        case ast.UnaryOp(operand=ast.Constant()):
            return True
    return False
