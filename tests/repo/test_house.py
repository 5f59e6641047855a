"""No module of a package imports itself through others."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = ("csrc", "ferro_alloc", "tests", "benchmarks", "tools")
SUFFIXES = (".h", ".cpp", ".py", ".pyi", ".sh")
PACKAGES = ("ferro_alloc", "benchmarks", "tools")


def sources(*folders: str) -> list[Path]:
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    # setup.py writes the last one, which is not in the repository.
    return sorted(p for p in paths if p.suffix in SUFFIXES and p.name != "_build_info.py")


def modules() -> dict[str, Path]:
    found = {}
    for path in sources(*PACKAGES):
        if path.suffix == ".py":
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """The known modules that a file imports anywhere."""
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
