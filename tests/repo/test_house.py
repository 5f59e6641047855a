"""The house: folders, files and classes stay small, no module imports itself."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = ("csrc", "ferro_alloc", "tests", "benchmarks", "tools")
SUFFIXES = (".h", ".cpp", ".py", ".pyi", ".sh")
MOST_SOURCES = 24
"""Directly in one folder."""
SHORT = ("csrc/ferro", "ferro_alloc")
MOST_LINES = 420
PACKAGES = ("ferro_alloc", "benchmarks", "tools")

# Files and folders that are known to be too large. An entry that no longer is has to go.
TOO_LARGE: set[str] = set()


def sources(*folders: str) -> list[Path]:
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    # The last is none of the repository's: setup.py writes it.
    return sorted(p for p in paths if p.suffix in SUFFIXES and p.name != "_build_info.py")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def crowded_folders() -> set[str]:
    folders = [name_of(path.parent) for path in sources(*CODE)]
    return {folder for folder in folders if folders.count(folder) > MOST_SOURCES}


def long_files() -> set[str]:
    return {
        name_of(path) for path in sources(*SHORT) if len(path.read_text().splitlines()) > MOST_LINES
    }


def test_folders_and_files_stay_small() -> None:
    assert crowded_folders() | long_files() == TOO_LARGE


MOST_PUBLIC = 28
"""Functions of a class, without what makes and ends it. Operators and types do not count."""
# What a table of others prescribes: PyTorch's interface, a function for each call of the driver,
# and whatever the driver's entry points share.
PRESCRIBED = {"CudaAllocator", "Driver", "Machine"}
CLASS = re.compile(r"^class (?:FERRO_\w+(?:\([^)]*\))? )?(\w+)\b(?!::)[^;{]*\{", re.MULTILINE)
NO_FUNCTION = re.compile(r"\b(using|friend|struct|class|enum|operator|static_assert)\b|= delete")
ANNOTATION = re.compile(r"FERRO_\w+\([^()]*\)")


def members(text: str) -> list[str]:
    """The text of each member of a class, without bodies: what ends with `;` or `{` or `:`."""
    found, depth, member = [], 1, ""
    for char in text:
        depth += {"{": 1, "}": -1}.get(char, 0)
        if depth == 0:
            break
        if depth == 1 and char == "}":
            member = ""
        elif (char, depth) in {("{", 2), (";", 1)}:
            found.append(member.strip())
            member = ""
        elif depth == 1:
            member += char
            if re.search(r"\b(public|protected|private):$", member):
                found.append(member.strip())
                member = ""
    return found


def public_functions(name: str, text: str) -> list[str]:
    found, public = [], False
    for member in members(text):
        if member.endswith(":"):
            public = member.endswith("public:")
        elif public and "(" in ANNOTATION.sub("", member) and not NO_FUNCTION.search(member):
            function = ANNOTATION.sub("", member).split("(")[0].split()[-1]
            if function.lstrip("~*&") != name:
                found.append(function)
    return found


def classes() -> dict[str, list[str]]:
    found = {}
    for path in (ROOT / "csrc").rglob("*.h"):
        text = re.sub(r"//[^\n]*", "", path.read_text())
        for match in CLASS.finditer(text):
            found[match[1]] = public_functions(match[1], text[match.end() :])
    return found


def test_public_functions_are_found() -> None:
    known = classes()["GapIndex"]
    assert known == ["insert", "remove", "first_fit", "count", "for_each", "check_invariants"]


def test_classes_stay_small() -> None:
    too_large = {name for name, functions in classes().items() if len(functions) > MOST_PUBLIC}
    assert too_large == PRESCRIBED


def modules() -> dict[str, Path]:
    found = {}
    for path in sources(*PACKAGES):
        if path.suffix == ".py":
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Modules that a file imports anywhere in it, of those that are known."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{name.name}" for name in node.names}
            # A name is a module of the package, or else the package's own.
            found |= {name if name in known else node.module for name in names}
    return found & set(known)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_imports_itself_through_others(package: str) -> None:
    known = modules()
    graph = {name: imports(path, known) for name, path in known.items() if name.startswith(package)}
    assert graph
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules that import each other: {' -> '.join(error.args[1])}")
