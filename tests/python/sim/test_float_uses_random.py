"""Random programs that bind names again: no branch that sees the read number is missed."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ferro_alloc.sim import _sources
from ferro_alloc.sim._float_uses import reached

Lines = list[str]


class EndError(Exception):
    """Ends a run."""


class Read(float):
    """The number that was read. It counts the branches that see it."""

    seen = 0

    def __gt__(self, other: object) -> bool:
        Read.seen += 1
        return False


class Programs:
    """Makes programs of two variables, and runs each on random ways."""

    def __init__(self, seed: int, in_lists: bool) -> None:
        self._random = random.Random(seed)
        self._in_lists = in_lists
        self._steps = 0

    def make(self) -> tuple[str, bool]:
        """A program, and whether it reads the number."""
        in_function = self._random.random() < 0.5
        lines = self._block(0, False, in_function)
        if in_function:
            value = "[]" if self._in_lists else "1"
            lines = ["def f(x, y):", *self._indented(lines), f"f({value}, {value})"]
        else:
            lines = ["x, y = [], []" if self._in_lists else "x = y = 1", *lines]
        reads = [place for place, line in enumerate(lines) if "w()" in line]
        kept = self._random.choice(reads) if reads else None
        for place in reads:  # a program reads at one place
            if place != kept:
                lines[place] = lines[place].replace("w()", "3")
        return "\n".join(lines), bool(reads)

    def _indented(self, lines: Lines) -> Lines:
        return ["    " + line for line in lines]

    def _block(self, depth: int, in_loop: bool, in_function: bool) -> Lines:
        lines: Lines = []
        for _ in range(self._random.randint(1, 4)):
            name, other = self._random.choice("xxxy"), self._random.choice("xy")
            value = "[]" if self._in_lists else "3"
            seen = f"{name} and {name}[0] > 3" if self._in_lists else f"{name} > 3"
            simple = [
                *[f"{name}.append(w())" if self._in_lists else f"{name} = w()"] * 2,
                *[f"if {seen}: pass"] * 3,
                f"{name} = {value}",
                f"{name}: object = {value}",
                f"{name}, z = {value}, {name}",
                f"({name} := {value})",
                f"{name} = {other}",
                "fail()",
            ]
            simple += ["if way(): break", "if way(): continue"] if in_loop else []
            simple += ["if way(): return 3"] if in_function else []

            def block(in_loop: bool = in_loop) -> Lines:
                return self._indented(self._block(depth + 1, in_loop, in_function))

            loop = f"for {name} in [{value}, {value}]:"
            compound: list[Callable[[], Lines]] = [
                lambda: ["if way():", *block(), "else:", *block()],
                lambda: ["while way():", *block(True), "else:", *block()],
                lambda: ["for _ in way() * [1]:", *block(True)],
                lambda loop=loop: [loop, *block(True), "else:", *block()],
                lambda: ["try:", *block(), "except ValueError:", *block()],
                lambda: ["try:", *block(), "finally:", *block()],
                lambda: ["with suppress(ValueError):", *block()],
                lambda held=f"with nullcontext({value}) as {name}:": [held, *block()],
            ]
            if depth < 2 and self._random.random() < 0.5:
                lines += self._random.choice(compound)()
            else:
                lines.append(self._random.choice(simple))
        return lines

    def _way(self) -> bool:
        self._steps += 1
        if self._steps > 50:
            raise EndError
        return self._random.random() < 0.6

    def _fail(self) -> None:
        if self._random.random() < 0.5:
            raise ValueError

    def run(self, program: str, file: Path) -> tuple[list[bool], bool]:
        """The verdicts of the reads, and whether a branch saw the number."""
        decided: list[bool] = []

        def read() -> Read:
            decided.append(reached(sys._getframe(1)))
            return Read()

        file.write_text(program)
        code = compile(program, str(file), "exec")
        names: dict[str, Callable[..., object]] = {"w": read, "way": self._way, "fail": self._fail}
        names |= {"suppress": contextlib.suppress, "nullcontext": contextlib.nullcontext}
        Read.seen = 0
        for _ in range(20):
            self._steps = 0
            with contextlib.suppress(EndError, ValueError, NameError):
                exec(code, dict(names))
        return decided, bool(Read.seen)


@pytest.mark.parametrize("in_lists", [False, True], ids=["numbers", "lists"])
def test_no_branch_is_missed(
    in_lists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sources, "_sources", {})
    checkout = str(Path(__file__).parents[3]) + "/"
    monkeypatch.setattr(_sources, "_LIBRARIES", (*_sources._LIBRARIES, checkout))
    programs = Programs(7, in_lists)
    seen = shown = 0
    for number in range(800):
        program, reads = programs.make()
        if reads:
            decided, is_seen = programs.run(program, tmp_path / f"{number}.py")
            assert all(decided) or not is_seen, program
            seen += is_seen
            shown += bool(decided) and not any(decided)
    assert seen > 90
    assert shown > 90
