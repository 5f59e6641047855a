"""What the texts of many files contain, without another search of a text for each name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Key = Any
Words = Callable[[str], Iterator[str]]
"""The words of a kind that a text contains, as of the functions below."""


class Texts:
    """Grows only, so each text is searched once for each pattern and each kind of words."""

    def __init__(self) -> None:
        self._texts: dict[Key, str] = {}
        self._in_order: list[tuple[Key, str]] = []
        self._found: dict[re.Pattern[str], tuple[bool, int]] = {}
        """Whether a pattern is found, and the number of texts that were searched for it."""
        self._keys: dict[Words, dict[str, list[Key]]] = {}
        self._searched: defaultdict[Words, int] = defaultdict(int)

    def add(self, key: Key, text: str) -> None:
        if key not in self._texts:
            self._texts[key] = text
            self._in_order.append((key, text))

    def are_in(self, others: Mapping[Key, str]) -> bool:
        """Are these texts among `others`?"""
        return all(others.get(key) == text for key, text in self._in_order)

    def has(self, pattern: re.Pattern[str]) -> bool:
        found, searched = self._found.get(pattern, (False, 0))
        if not found and searched < len(self._in_order):
            found = any(pattern.search(text) for _, text in self._in_order[searched:])
            self._found[pattern] = (found, len(self._in_order))
        return found

    def keys_with(self, words: Words, word: str) -> list[Key]:
        """The keys of the texts that contain this word, in order."""
        of_word = self._keys.setdefault(words, {})
        for key, text in self._in_order[self._searched[words] :]:
            for each in dict.fromkeys(words(text)):
                of_word.setdefault(each, []).append(key)
        self._searched[words] = len(self._in_order)
        return of_word.get(word, [])


def _all(pattern: str, flags: re.RegexFlag = re.NOFLAG) -> Words:
    """The words are the pattern's group, which may be in a part that the next match has too."""
    compiled = re.compile(pattern, flags)
    return lambda text: (found[1] for found in compiled.finditer(text))


def _within(pattern: str, part: Words) -> Words:
    """Those in the group of the pattern."""
    compiled = re.compile(pattern)
    return lambda text: (word for found in compiled.finditer(text) for word in part(found[1]))


words = _all(r"(\w+)")
called = _all(r"(\w+)\(")
attributes = _all(r"\.(\w+)")
defined = _all(r"\bdef\s+(?=(\w+))")
annotated = _all(r"^\s*(?=(\w+)\s*:)", re.MULTILINE)
set_attributes = _all(r"\.(?=(\w+)\s*=(?!=))")
set_of_others = _all(r"(?<!\bself)\.(?=(\w+)\s*=(?!=))")
"""Attributes that are set, but those of `self`."""
quoted = _all(r"[\"'](?=(\w+)[\"'])")
set_by_text = _within(r"setattr\s*\((?=([^\n]*))", quoted)
bases = _within(r"class\s+\w+\s*\((?=([^)]*))", words)

_RUN = re.compile(r"[\w\s,]+")
_ASSIGNS = re.compile(r"(?::[^=\n]+)?=(?!=)")


def assigned(text: str) -> Iterator[str]:
    """Words from the beginning of a line to an assignment, with nothing but words between."""
    for run in _RUN.finditer(text):
        if _ASSIGNS.match(text, run.end()):
            start = 0 if run.start() == 0 else run[0].find("\n") + 1
            if start or run.start() == 0:
                yield from words(run[0][start:])
