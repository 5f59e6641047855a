"""How the work of a search for numbers grows with the program: no faster than its length."""

from __future__ import annotations

import gc
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from ferro_alloc.sim import _follow, _harmless, _program, _sources, _texts
from ferro_alloc.sim._float_uses import reached
from ferro_alloc.sim._harmless import is_harmless
from ferro_alloc.sim._texts import Texts
from tests.python.sim.conftest import leave_out_what_is_loaded

COUNT = 40


def lines(*texts: str) -> Callable[[int], str]:
    """Makes a program of the first text, of the second for each number, and so on in turns."""

    def make(count: int) -> str:
        parts = []
        for place, text in enumerate(texts):
            for n in range(count) if place % 2 else (count - 1,):
                parts.append(text.replace("{n}", str(n)))
        return "".join(parts)

    return make


PROGRAMS = {
    "branches": lines("best = 0\nx = w.item()\n", "if x < {n}:\n    best = x\n", "print(best)\n"),
    "branches of their own": lines(
        "x = w.item()\n", "if x < {n}:\n    b{n} = x\nelse:\n    b{n} = 3\nprint(b{n})\n"
    ),
    "branches in functions": lines(
        "", "def f{n}():\n    x = w.item()\n    y = 3\n    if x < 3: y = x\n    print(y)\nf{n}()\n"
    ),
    "reads in functions": lines(
        "", "def f{n}():\n    x = w.item()\n    y = x * 2\n    print(y)\nf{n}()\n"
    ),
    "reads into one name": lines("", "x = w.item()\ny = x * 2\nprint(y)\n"),
    "reads into one list": lines("a = []\n", "a.append(w.item())\nprint(a[-1])\n"),
    "reads into many names": lines("", "a{n}, b{n} = 3, w.item()\nprint(a{n}, b{n})\n"),
    "calls of one function": lines(
        "def f(x):\n    y = x * 2\n    return y\n", "print(f(w.item()))\n"
    ),
    "reads in one function": lines("def f():\n    return w.item()\n", "x = f()\nprint(x)\n"),
    "methods": lines(
        "class A:\n    def __init__(self):\n        self.x = 0\n"
        "    def put(self, x):\n        self.x = x\n",
        "    def m{n}(self):\n        return self.x + {n}\n",
        "a = A()\na.put(w.item())\n",
        "print(a.m{n}())\n",
    ),
    "methods that read": lines(
        "class A:\n    def __init__(self):\n        self.x = 0\n",
        "    def m{n}(self):\n        self.x = w.item()\n",
        "a = A()\n",
        "a.m{n}()\nprint(a.x)\n",
    ),
    "methods that call one": lines(
        "class A:\n    def __init__(self):\n        self.x = 0\n"
        "    def put(self, x):\n        self.x = x\n",
        "    def m{n}(self):\n        self.put(w.item())\n",
        "a = A()\n",
        "a.m{n}()\nprint(a.x)\n",
    ),
    "keys": lines("d = {}\n", "d['k{n}'] = w.item()\n", "", "print(d['k{n}'])\n"),
    "a chain of elif": lines(
        "x = w.item()\nif x < -1:\n    print(3)\n", "elif x < {n}:\n    print({n})\n"
    ),
    "loads in a long block": lines("x = w.item()\n", "y{n} = 3\nprint(x)\n"),
    "a chain of names": lambda n: (
        "x0 = w.item()\n" + "".join(f"x{i + 1} = x{i} + 1\n" for i in range(n))
    ),
    "long expressions": lambda n: f"x = w.item()\ny = {' + '.join(['x'] * 8 * n)}\nprint(y)\n",
}
ONLY_FLOATS = {
    "classes": lines(
        "",
        "class C{n}:\n    def put(self, x):\n        self.x = x\n    def get(self):\n"
        "        return self.x\nc{n} = C{n}()\nc{n}.put(w.item())\nprint(c{n}.get())\n",
    ),
    "attributes of one object": lines(
        "class A:\n    def put(self, x):\n",
        "        self.b{n} = 0\n        print(self.b{n})\n        self.b{n} = x\n",
        "a = A()\na.put(w.item())\n",
    ),
    "branches with attributes": lines(
        "class A:\n    def put(self, x):\n",
        "        if x < {n}:\n            self.b{n} = x\n",
        "a = A()\na.put(w.item())\n",
    ),
    "attributes outside the class": lines(
        "class A:\n    pass\na = A()\n", "a.b{n} = w.item()\nprint(a.b{n})\n"
    ),
    "keys of an attribute": lines(
        "class A:\n    def __init__(self):\n        self.d = {}\n    def put(self):\n",
        "        self.d['k{n}'] = w.item()\n        print(self.d['k{n}'])\n",
        "a = A()\na.put()\n",
    ),
    "generators": lines("", "def f{n}():\n    yield w.item()\nprint(*f{n}())\n"),
}


class Number:
    """A stand-in for a tensor of one number on the device, which counts calls of functions."""

    def __init__(self, integers: bool) -> None:
        self.integers = integers
        self.work = 0
        self.is_shown: list[bool] = []

    def item(self) -> int:
        frame = sys._getframe(1)
        sys.setprofile(self._count)
        try:
            is_shown = is_harmless(frame) if self.integers else not reached(frame)
        finally:
            sys.setprofile(None)
        self.is_shown.append(is_shown)
        return 0

    def _count(self, frame: FrameType, event: str, argument: object) -> None:
        self.work += event == "call" and "/ferro_alloc/sim/" in frame.f_code.co_filename


@pytest.fixture(autouse=True)
def only_this_program(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_sources, "_sources", {})
    monkeypatch.setattr(_sources, "_searched", [])
    monkeypatch.setattr(_program, "_last", [])
    monkeypatch.setattr(_follow, "_earlier", _follow.Earlier())
    # The first searches do not use what earlier ones found.
    monkeypatch.setattr(_follow, "EXACT_PARTS", 0)
    monkeypatch.setattr(_harmless, "EXACT_PARTS", 0)
    leave_out_what_is_loaded(monkeypatch)
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def work(program: str, folder: Path, integers: bool) -> int:
    """Of all reads of the program, which are only shown."""
    file = folder / f"program{len(program)}.py"
    file.write_text(program)
    number = Number(integers)
    names = {"w": number, "__name__": "__main__", "__file__": str(file)}
    exec(compile(program, str(file), "exec", dont_inherit=True), names)
    assert number.is_shown
    assert all(number.is_shown)
    return number.work


CASES = [
    *((name, integers) for name in PROGRAMS for integers in (False, True)),
    *((name, False) for name in ONLY_FLOATS),
]


@pytest.mark.parametrize(("name", "integers"), CASES)
def test_the_work_grows_with_the_length(name: str, integers: bool, tmp_path: Path) -> None:
    make = (PROGRAMS | ONLY_FLOATS)[name]
    work(make(2), tmp_path, integers)
    once, twice, four_times = (
        work(make(count), tmp_path, integers) for count in (COUNT, 2 * COUNT, 4 * COUNT)
    )
    assert four_times - twice < 2.4 * (twice - once) + 200


@pytest.mark.parametrize("integers", [False, True])
def test_the_work_grows_with_the_number_of_files(
    integers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for n in range(7 * COUNT):
        text = f"def f{n}(x):\n    y = x * 2\n    return y\nclass C{n}:\n    z = {n}\n"
        (tmp_path / f"part{n}.py").write_text(text)
    counts = []
    first = 0
    for count in (COUNT, 2 * COUNT, 4 * COUNT):
        files = range(first, first + count)
        first += count
        imports = "".join(f"import part{n}\n" for n in files)
        uses = "".join(f"print(part{n}.f{n}(w.item()))\n" for n in files)
        counts.append(work(imports + uses, tmp_path, integers))
    once, twice, four_times = counts
    assert four_times - twice < 2.4 * (twice - once) + 200


def test_a_file_is_read_again_only_if_it_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "part.py"
    file.write_text("x = 3\n")
    text = _sources.text_in(str(file), {})
    assert _sources.text_in(str(file), {}) is text
    file.write_text("y = 33\n")
    _sources.linecache.checkcache(str(file))
    assert _sources.text_in(str(file), {}) == "y = 33\n"


def test_equal_code_has_one_number() -> None:
    one, same, other = (compile(text, "x.py", "exec") for text in ("x = 3", "x = 3", "x = 4"))
    assert _sources.number_of(one) == _sources.number_of(same)
    assert _sources.number_of(one) != _sources.number_of(other)
    known = _sources.number_of(other)
    for n in range(50):  # of which some get the identity of one that was removed
        made = compile(f"x = {n + 5}", "x.py", "exec")
        assert _sources.number_of(made) not in (known, _sources.number_of(one))
        del made
        gc.collect(0)


def test_a_text_is_searched_once_for_a_pattern_and_for_words() -> None:
    searched: list[str] = []

    class Pattern:
        def search(self, text: str) -> bool:
            searched.append(text)
            return text == "d"

    def words(text: str) -> Iterator[str]:
        searched.append(text)
        yield text

    texts, pattern = Texts(), Pattern()
    for each in "abcde":
        texts.add(each, each)
        texts.has(pattern)  # type: ignore[arg-type]
    assert searched == ["a", "b", "c", "d"]
    searched.clear()
    for each in "fga":
        texts.add(each, each)
        assert texts.keys_with(words, each) == [each]
    assert searched == list("abcdefg")


KINDS = [
    (_texts.words, r"\bNAME\b"),
    (_texts.called, r"\bNAME\("),
    (_texts.attributes, r"\.NAME\b"),
    (_texts.defined, r"\bdef\s+NAME\b"),
    (_texts.annotated, r"^\s*NAME\s*:"),
    (_texts.set_attributes, r"\.NAME\s*=(?!=)"),
    (_texts.set_of_others, r"(?<!\bself)\.NAME\s*=(?!=)"),
    (_texts.quoted, r"[\"']NAME[\"']"),
    (_texts.set_by_text, r"setattr\s*\([^\n]*[\"']NAME[\"']"),
    (_texts.bases, r"class\s+\w+\s*\([^)]*\bNAME\b"),
    (_texts.assigned, r"^[\s\w,]*\bNAME\b[\w\s,]*(?::[^=\n]+)?=(?!=)"),
]
PIECES = [
    "a",
    "b",
    "self",
    "def ",
    "def\t",
    "class ",
    "setattr",
    "(",
    ")",
    ".",
    ",",
    ":",
    "=",
    "==",
]
PIECES += ["'", '"', " ", "\n", "\n    ", "x1", "+"]


@pytest.mark.parametrize(("words", "pattern"), KINDS)
def test_the_words_of_a_kind_are_those_that_a_pattern_finds(
    words: _texts.Words, pattern: str
) -> None:
    draw = random.Random(3)
    for _ in range(3_000):
        text = "".join(draw.choices(PIECES, k=draw.randint(1, 14)))
        found = set(words(text))
        for name in ("a", "b", "self", "x1", "def", "ab"):
            is_found = re.search(pattern.replace("NAME", name), text, re.MULTILINE)
            assert (name in found) == bool(is_found), (text, name)
