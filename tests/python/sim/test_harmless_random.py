"""Random programs: one whose read is called harmless does the same with every number."""

from __future__ import annotations

import contextlib
import io
import random
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ferro_alloc.sim import _harmless, _sources
from ferro_alloc.sim._harmless import is_harmless
from tests.python.sim.conftest import leave_out_what_is_loaded

Lines = list[str]
KEYS = ('"a"', '"b"')
NUMBERS, LISTS, DICTIONARIES = ("n", "m", "k", "j"), ("p", "q", "r"), ("d", "g")
START = """\
n = m = k = j = 2
p, q, r = [2, 3, 4], [4, 2, 3], [5, 6, 7]
d, g, e = {'a': 2, 'b': 4}, {'a': 3, 'b': 5}, {'a': [3], 'b': [4]}
class Box:
    def __init__(self, n): self.n, self.p = n, []
    def put(self, n): self.n += n
    def fill(self, n): self.p.append(n)
    def mean(self): return self.n / 2
box, other = Box(2), Box(3)
def show(n): print(n)
def half(n): return n / 2
def both(n): return n, 3
def count(n): return len(range(abs(int(n)) % 5))
def add(n, p=[]):
    p.append(n)
    return p
"""
READS = [
    "n = w()",
    "m, k = 3, w()",
    "p.append(w())",
    "p = [w(), 3]",
    "d['a'] = w()",
    "e['a'].append(w())",
    "d = {'a': w(), 'b': 3}",
    "box.put(w())",
    "box.fill(w())",
    "box = Box(w())",
    "n, m = both(w())",
    "n += w()",
    "n = half(w())",
    "q.extend([w()])",
    "e = {'a': [w()], 'b': [3]}",
]


class EndError(Exception):
    """Ends a run."""


class Programs:
    """Makes programs, and runs each with several numbers on the same ways."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._sizes = 0.0
        self._has_branches = False

    def make(self) -> str:
        """A program that reads at one place."""
        while True:
            program = self._program()
            with contextlib.suppress(SyntaxError), warnings.catch_warnings():
                warnings.simplefilter("error")
                compile(program, "", "exec")
                return program

    def _program(self) -> str:
        self._sizes = self._random.choice([0.0, 0.1, 0.4, 0.6])
        self._has_branches = self._random.random() < 0.5
        lines = self._block(0, "")
        if self._random.random() < 0.7:
            lines = [line.replace("w()", "3") for line in lines]
            lines.insert(self._random.randrange(2), self._random.choice(READS))
        if self._sizes:
            lines += [self._sized() for _ in range(2)]
        reads = [place for place, line in enumerate(lines) if "w()" in line]
        kept = self._random.choice(reads) if reads else None
        for place in reads:
            if place != kept:
                lines[place] = lines[place].replace("w()", "3")
        lines = [*START.splitlines(), *lines, *(["# branches"] if self._has_branches else [])]
        if self._random.random() < 0.5:
            lines = ["def main():", *("    " + line for line in lines), "main()"]
        return "\n".join(lines).replace("w()", "number.item()")

    def _pick(self, *choices: str) -> str:
        return self._random.choice(choices)

    def _sized(self) -> str:
        return self._pick(
            *[f"size({self._pick(*NUMBERS)})", f"size({self._pick(*LISTS)}[0])"] * 2,
            f"size({self._pick(*DICTIONARIES)}[{self._pick(*KEYS)}])",
            f"size({self._pick('box', 'other')}.{self._pick('n', 'mean()', 'p')})",
            f"size(len({self._pick(*LISTS)}))",
        )

    def _uses_sizes(self) -> bool:
        return self._random.random() < self._sizes

    def _number(self, depth: int = 0) -> str:
        if depth > 1 or self._random.random() < 0.3:
            return self._pick(*NUMBERS, "w()", "w()", "3")

        def one() -> str:
            return self._number(depth + 1)

        if self._has_branches and self._random.random() < 0.2:
            name = self._pick(*NUMBERS)
            return self._pick(
                f"({one()} / {name} if {name} > 0 else {one()})",
                f"({one()} if {name} > {one()} else {self._pick(*NUMBERS)})",
            )
        if self._uses_sizes():
            return self._pick(
                f"count({one()})",
                f"{self._pick(*LISTS)}[{one()}]",
                f"(lambda n: {one()})({one()})",
                f"len(str({one()}))",
            )
        return self._pick(
            f"({one()} + {one()})",
            f"({one()} * {one()} % 7)",
            f"{one()} / 2",
            f"abs({one()})",
            f"({one()} > {one()})",
            f"max({one()}, {one()})",
            f"sum({self._list(depth + 1)})",
            f"len({self._list(depth + 1)})",
            f"half({one()})",
            f"both({one()})[{self._pick('0', '1')}]",
            f"{self._pick('box', 'other')}.{self._pick('n', 'mean()')}",
            f"{self._pick(*DICTIONARIES)}[{self._pick(*KEYS)}]",
            f"{self._pick(*LISTS)}[{self._pick('0', '-1')}]",
            f"({one()} if len({self._pick(*LISTS)}) > 2 else {one()})",
            f"({self._pick(*NUMBERS)} := {one()})",
        )

    def _list(self, depth: int = 0) -> str:
        if depth > 1 or self._random.random() < 0.4:
            return self._pick(*LISTS)

        def number() -> str:
            return self._number(depth + 1)

        def other() -> str:
            return self._list(depth + 1)

        if self._uses_sizes():
            return self._pick(
                f"{other()}[:{number()}]",
                f"list(range({number()} % 5))",
                f"[{number()}] * ({number()} % 5)",
                f"sorted({other()})",
                f"add({number()})",
            )
        return self._pick(
            f"[{number()}, {number()}]",
            f"[n for n in {other()}]",
            f"[n + {number()} for m in {other()}]",
            f"{other()}[:{self._pick('1', '2')}]",
            f"({other()} + {other()})",
            f"list({self._pick('d', 'e')}.values())",
            f"list(reversed({other()}))",
            f"[x for _, x in enumerate({other()})]",
            f"list(map(int, {other()}))",
            "box.p",
            "e['a']",
        )

    def _block(self, depth: int, indent: str) -> Lines:
        lines: Lines = []
        for _ in range(self._random.randint(2, 7) if depth == 0 else 2):
            name, of = self._pick(*NUMBERS), self._pick(*LISTS)
            number, some = self._number(), self._list()
            table, box = self._pick(*DICTIONARIES), self._pick("box", "other")
            simple = [
                *[f"{name} = {number}"] * 3,
                *[f"{name} += {number}"] * 2,
                *[f"print({number})", f"show({number})", f"print(f'{{{number}}}', {some})"] * 2,
                f"{name}, {self._pick(*NUMBERS)} = both({number})",
                f"{name}, *{of} = {some}",
                f"{of} = {some}",
                f"{of} += {some}",
                *[f"{of}.append({number})"] * 2,
                f"{of}.extend({some})",
                f"{of}[0] = {number}",
                f"{table}['b'] = {number}",
                f"{table} = {{'a': {number}, 'b': {number}}}",
                f"{table}[{self._pick(*KEYS)}] += {number}",
                f"e[{self._pick(*KEYS)}].append({number})",
                f"e['b'] = {some}",
                f"{box}.n = {number}",
                f"{box}.put({number})",
                f"{box}.fill({number})",
                f"{self._pick('box', 'other')} = {box}",
                f"del {of}[0]",
            ]
            if self._uses_sizes():
                simple = [
                    *[self._sized() for _ in range(4)],
                    f"{name} = size({number})",
                    f"if {number} > 3: size(3)",
                    f"while {name} > 3: {name} = {self._pick('1', name + ' - 1')}",
                ]
            if self._has_branches and self._random.random() < 0.3:
                other = self._pick(*NUMBERS)
                both = f"{name}, {other} = {other}, 3"
                lines += [
                    f"{indent}if {self._pick(*NUMBERS)} > {number}{self._pick('', ' and k > 3')}:",
                    f"{indent}    {self._pick(f'{name} = {other}', both)}",
                    f"{indent}    {self._pick(f'print({other})', f'{name} += 1', 'pass')}",
                    f"{indent}{self._pick(f'else: {other} = 3', 'print(3)')}",
                ]
            elif depth < 2 and self._random.random() < 0.3:
                deeper = self._block(depth + 1, indent + "    ")
                head = self._pick(
                    f"for {name} in {some}:",
                    f"for k, {name} in enumerate({some}):",
                    f"for _, {name} in {table}.items():",
                    f"if len({of}) > 1:",
                    f"def half({name}):",
                    "try:",
                )
                lines += [indent + head, *deeper]
                if head == "try:":
                    lines += [f"{indent}except (TypeError, IndexError):", f"{indent}    size(1)"]
                elif head.startswith("def"):
                    lines.append(f"{indent}    return {self._pick(*NUMBERS)}")
            else:
                lines.append(indent + self._random.choice(simple))
        return lines

    def run(self, program: str, file: Path, number: int) -> tuple[list[bool], list[object]]:
        """Whether each read is harmless, and the sizes and the instructions of the run."""
        harmless: list[bool] = []
        trace: list[object] = []
        # Harmless numbers may decide branches that change nothing else.
        steps: list[object] = [] if "# branches" in program else trace

        class Number:
            def item(self) -> int:
                harmless.append(is_harmless(sys._getframe(1)))
                return number

        def size(count: object) -> int:
            trace.append(str(count))
            return 3

        def observe(frame: FrameType, event: str, argument: object) -> Any:
            if frame.f_code.co_filename != str(file):
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                steps.append(frame.f_lasti)
                lists = [each for each in frame.f_locals.values() if isinstance(each, list)]
                if len(steps) > 1_000 or any(len(each) > 50 for each in lists):
                    raise EndError
            return observe

        names = {"number": Number(), "size": size, "__name__": "__main__", "__file__": str(file)}
        code = compile(program, str(file), "exec", dont_inherit=True)
        before = sys.gettrace()
        sys.settrace(observe)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(code, names)
        except Exception as error:
            trace.append(type(error).__name__)
        finally:
            sys.settrace(before)
        return harmless, trace


def _are_same(one: list[object], other: list[object]) -> bool:
    """As far as both ran."""
    if EndError.__name__ in (*one[-1:], *other[-1:]):
        count = min(len(one), len(other)) - 1
        return one[:count] == other[:count]
    return one == other


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4))]
)
def test_no_harmless_number_decides(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out_what_is_loaded(monkeypatch)
    monkeypatch.setattr(_harmless, "_known", {})
    programs = Programs(seed)
    shown = decide = 0
    for at in range(300):
        monkeypatch.setattr(_sources, "_sources", {})
        program = programs.make()
        file = tmp_path / f"{at}.py"
        file.write_text(program)
        (harmless, first), *others = [programs.run(program, file, n) for n in (0, 1, 7, -3)]
        is_same = all(_are_same(trace, first) for _, trace in others)
        assert is_same or not (harmless and all(harmless)), program
        shown += bool(harmless) and all(harmless)
        decide += not is_same
    assert shown > 60
    assert decide > 15
