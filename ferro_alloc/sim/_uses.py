"""The loads of a container or an object, by the element or the attribute that each takes.

So a number at a known place is followed to the loads that may take it, and the others are not
looked at for each number again.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable

from ferro_alloc.sim._sources import Source

Places = list[tuple[int, ast.AST]]
"""Loads with their places among all."""


def _none(_: str) -> bool:
    return False


class Uses:
    """`is_field`: is an attribute of this name loaded without code of the program? `is_method`: is
    it a method?"""

    def __init__(
        self,
        source: Source,
        loads: Iterable[tuple[int, ast.AST]],
        is_field: Callable[[str], bool] = _none,
        is_method: Callable[[str], bool] = _none,
    ) -> None:
        self.taken: defaultdict[object, Places] = defaultdict(list)
        """By the name of an attribute, or the constant that is the index or the key."""
        self.called: defaultdict[str, Places] = defaultdict(list)
        """By the names of the methods that are called."""
        self.others: Places = []
        names: dict[str, tuple[bool, bool]] = {}
        for place in loads:
            load = place[1]
            match user := source.parents[load]:
                case ast.Attribute(attr=name):
                    if name not in names:
                        names[name] = (is_field(name), is_method(name))
                    is_taken, is_called = names[name]
                    call = source.parents[user]
                    is_called = is_called and isinstance(call, ast.Call) and call.func is user
                    key: object = name
                case ast.Subscript(value=value, slice=ast.Constant(value=key)) if value is load:
                    is_taken, is_called, name = is_field is _none, False, ""
                case _:
                    is_taken, is_called, name = False, False, ""
            if is_taken and _only_stores(source, user):
                continue
            if is_taken:
                self.taken[key].append(place)
            elif is_called:
                self.called[name].append(place)
            else:
                self.others.append(place)


def _only_stores(source: Source, target: ast.AST) -> bool:
    """Is it assigned without a look at what was there?"""
    is_stored = isinstance(getattr(target, "ctx", None), ast.Store)
    return is_stored and not isinstance(source.parents[target], ast.AugAssign)
