"""A Python program on the launcher's command line, started as Python itself would start it."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Program:
    """The user's program, and how Python itself would start it."""

    target: str
    is_module: bool
    arguments: Sequence[str]

    @property
    def name(self) -> str:
        """As in "train.py" or "my_package.train"."""
        return self.target if self.is_module else Path(self.target).name

    def run(self) -> dict[str, Any]:
        """Runs it as `__main__` with Python's own `sys.argv` and `sys.path[0]`; returns its
        globals."""
        if self.is_module:
            sys.argv = [self.target, *self.arguments]
            # `python -m ferro_alloc` left the working directory in sys.path[0], as -m requires.
            return runpy.run_module(self.target, run_name="__main__", alter_sys=True)
        sys.argv = [self.target, *self.arguments]
        path = Path(self.target)
        if path.is_dir() or path.suffix in (".zip", ".pyz"):
            # run_path puts a folder or an archive in front of sys.path itself; Python would leave
            # no entry for the working directory.
            sys.path.pop(0)
        else:
            sys.path[0] = str(path.resolve().parent)
        return runpy.run_path(self.target, run_name="__main__")


def split_program(argv: Sequence[str]) -> tuple[list[str], Program | None]:
    """Separates the launcher's options from the program and its arguments.

    As with python itself, the first word that is not an option, or `-m MODULE`, ends the options;
    all later words belong to the program.
    """
    options: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "-m":
            if not words:
                return [*options, word], None
            return options, Program(words[0], is_module=True, arguments=words[1:])
        if word == "--" and words:
            return options, Program(words[0], is_module=False, arguments=words[1:])
        if not word.startswith("-"):
            return options, Program(word, is_module=False, arguments=words)
        options.append(word)
        if word == "--conf" and words:
            options.append(words.pop(0))
    return options, None
