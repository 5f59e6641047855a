"""Options of `simulate` that stand behind the program, which got them instead.

A program may have options of the same names, so none is taken away from it. An option counts as
misplaced if its value fits, and the program's source does not name it or reads no arguments.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ferro_alloc._errors import FerroError
from ferro_alloc._program import Program
from ferro_alloc.fit import _certainty
from ferro_alloc.fit._allocators import ALLOCATORS
from ferro_alloc.sim import _sources
from ferro_alloc.sim.cards import find_card, parse_memory

CERTAIN = ("--what-if", "--no-values", "--no-backing", "--allocator", "--gpu")
"""Options that are noticed before the program runs, if its first file does not name them."""
COMMON = ("--count", "--seed", "--mode", "--output", "--values")
"""Options that many programs and libraries have: misplaced only where the program ended with the
status of a parser that refused something."""
REFUSED = 2
"""That status, of argparse and click."""
READS = re.compile(
    r"\b(?:orig_)?argv\b|argparse|Argument(?:s|Parser)|parse_(?:known_)?args|optparse|getopt"
    r"|\b(?:click|fire|typer|absl|docopt|hydra|tyro|jsonargparse|simple_parsing|draccus|chz)\b"
    r"|\bplac\b|CLI\b|\bcli\b"
)


def noticed(program: Program) -> str:
    """The first one that was probably meant for this command, before the program runs; or empty.
    Programs often have `--gpu 0` and `--memory` of their own."""
    text = text_of(program)
    for name, shown in _options(program.arguments):
        if name in CERTAIN and not (text and _names(text, name)):
            return shown
    return ""


def misplaced(program: Program, text: str | None, status: int) -> list[str]:
    """Those that a program with this `text_of` has ignored or refused, as it ended with this
    status."""
    options = [
        (name, shown)
        for name, shown in _options(program.arguments)
        if status == REFUSED or name not in COMMON
    ]
    if text is None or not options:
        return []
    texts = [text, *(_read(Path(file)) or "" for file in _sources.modules_of_program())]
    if status != REFUSED and not any(READS.search(each) for each in texts):
        return [shown for _, shown in options]
    return [shown for name, shown in options if not any(_names(each, name) for each in texts)]


def lines_of(words: Sequence[str]) -> list[str]:
    if not words:
        return []
    one = len(words) == 1
    verb, which = ("stands", "it") if one else ("stand", "them")
    return [
        f"  {', '.join(words)} {verb} behind the program, which does not use {which}: options of "
        "simulate stand in front of the program"
    ]


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The names of this command's options whose values fit, and how they stand there."""
    for word, after in zip(words, [*words[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        value = value if equals else after
        if name in ("--compare", "--what-if", "--no-values", "--no-backing", "--values"):
            yield name, name
        elif _fits(name, value):
            yield name, f"{name} {value}"


def _fits(name: str, value: str) -> bool:
    if name == "--gpu":
        return _succeeds(find_card, value)
    if name == "--memory":
        return _succeeds(parse_memory, value)
    if name == "--report":
        return value.endswith((".html", ".htm"))
    if name == "--json":
        return value.endswith(".json") or value == "-"
    if name in ("--count", "--seed", "--time-limit"):
        return value.replace(".", "", 1).isdigit()
    values = {
        "--allocator": ALLOCATORS,
        "--output": (*ALLOCATORS, "all"),
        "--rows": (*_certainty.ROWS, "both"),
        "--mode": ("eager", "adversarial", "clock"),
    }
    return value in values.get(name, ())


def _succeeds(parse: object, value: str) -> bool:
    try:
        parse(value)  # type: ignore[operator]
    except FerroError:
        return False
    return True


def _names(text: str, option: str) -> bool:
    words = option.removeprefix("--").removeprefix("no-").split("-")
    return re.search(rf"\b{'[-_]'.join(words)}\b", text) is not None


def text_of(program: Program) -> str | None:
    """The text of its first file; None of an archive, and of a module of an installed package."""
    if not program.is_module:
        path = Path(program.target)
        return _read(path / "__main__.py" if path.is_dir() else path)
    try:
        found = importlib.util.find_spec(program.target)
        if found is not None and found.submodule_search_locations is not None:
            found = importlib.util.find_spec(f"{program.target}.__main__")
    except (ImportError, ValueError):
        return None
    origin = None if found is None else found.origin
    return None if origin is None or not _sources.is_of_program(origin) else _read(Path(origin))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="strict")
    except (OSError, ValueError):
        return None
