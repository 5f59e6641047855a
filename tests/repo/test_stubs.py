"""The stub `_C.pyi` has the names and arguments of the extension."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest

from ferro_alloc import _load

STUB = Path(__file__).resolve().parents[2] / "ferro_alloc" / "_C.pyi"


@pytest.fixture(scope="module")
def extension() -> ModuleType:
    return _load.load()


def functions(body: list[ast.stmt]) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def stubbed() -> dict[str, ast.FunctionDef]:
    return functions(ast.parse(STUB.read_text()).body)


def test_same_names(extension: ModuleType) -> None:
    tree = ast.parse(STUB.read_text())
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    public = {name for name in vars(extension) if not name.startswith("__")}
    assert public == set(stubbed()) | classes


@pytest.mark.parametrize("name", sorted(stubbed()))
def test_same_arguments(name: str, extension: ModuleType) -> None:
    # pybind11 writes the signature into the first line of the docstring.
    documented = getattr(extension, name).__doc__.splitlines()[0]
    found = re.search(r"\((.*)\)\s*->\s*(.*)$", documented)
    assert found is not None, documented
    # Newer pybind11 shows what converts to an integer as well as the integer itself.
    arguments = re.findall(r"(\w+):", found.group(1))
    assert arguments == [argument.arg for argument in stubbed()[name].args.args]
    returned = stubbed()[name].returns
    assert returned is not None
    # The stub leaves out the module of a class, which is its own; the docstring that a pointer may
    # be null.
    stub = ast.unparse(returned).removesuffix(" | None")
    assert (
        stub.split("[")[0] == found.group(2).removeprefix("ferro_alloc._C.").split("[")[0].strip()
    )
