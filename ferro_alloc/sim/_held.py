"""What an expression has of a number, and what a function gives its caller of it."""

from __future__ import annotations

import ast
from typing import NamedTuple

from ferro_alloc.sim._definitions import Class, Function

ANYWHERE = object()
CALLED = object()
Key = object
"""Where a container has the number: an index, a key, a Field of an object, CALLED if a function
returns it, or ANYWHERE."""
MAX_KEYS = 5


class Field(NamedTuple):
    of: Class | None
    name: str
    """Empty: any of its attributes may have it."""
    at: int | None = None
    """Of a named tuple."""


class Held(NamedTuple):
    """What an expression has of the number."""

    integers: bool = False
    """Integers that were made of it on the host."""
    chosen: bool = False
    """An object that the number chose from others."""
    keys: tuple[Key, ...] = ()
    """Where the number is, from the outermost container. Empty: it is no container, or unknown."""
    whole: bool = False
    """Integers or booleans were read, so a conversion to integers decides nothing."""
    text: bool = False
    """A text that shows the number."""

    def in_text(self) -> Held:
        return Held(text=True, whole=self.whole)

    def inside(self, key: Key) -> Held:
        return self._replace(keys=(key, *self.keys)[:MAX_KEYS])

    def element(self) -> Held:
        return self._replace(keys=self.keys[1:])

    def is_at(self, key: Key) -> bool:
        return not self.keys or self.place in (ANYWHERE, key)

    def moved(self, start: int = 0) -> Held:
        """In a container whose elements have other indices now, from `start` on."""
        is_moved = isinstance(self.place, int) and self.place >= start
        return self.element().inside(ANYWHERE) if is_moved else self

    @property
    def has_elements(self) -> bool:
        """Is it no function, and no object other than a named tuple?"""
        return self.first is not CALLED and not isinstance(self.place, Field)

    @property
    def place(self) -> Key:
        """The first key. Of a field of a named tuple, the index."""
        first = self.first
        return first.at if isinstance(first, Field) and first.at is not None else first

    @property
    def first(self) -> Key:
        return self.keys[0] if self.keys else None


class Given(NamedTuple):
    """What a function gives its caller of the number."""

    function: Function
    parameter: str | None
    """The argument that has it now; None: it is returned."""
    held: Held


class Reached(NamedTuple):
    """Where the number becomes a branch or a size."""

    what: str
    """"condition", "index", "size" or "conversion to an integer"."""
    place: str
    """As in "train.py:8"; empty if the search was too long."""

    def __str__(self) -> str:
        if not self.place:
            return "more of the program than the search of its source covers"
        return f"the {self.what} at {self.place}"


Outcome = frozenset[Given] | Reached
"""What the caller gets, which decides; empty if the number is only shown."""
SHOWN: frozenset[Given] = frozenset()
Part = tuple[ast.AST, Held]
"""An expression, and what it has of the number."""
