"""The parsed files of a program: what their names are bound to, and where these are loaded."""

from __future__ import annotations

import ast
import linecache
import sys
import sysconfig
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
Position = tuple[int | None, int | None, int | None, int | None]
"""The first and the last line, the first and the last column, as of `co_positions`."""


class Source:
    """A parsed file of the module with this name."""

    def __init__(self, tree: ast.Module, file: str, module: object) -> None:
        self._file = file
        self._module = module
        self.is_of_program = is_of_program(file)
        self.parents: dict[ast.AST, ast.AST] = {}
        self.loads: defaultdict[str, list[ast.expr]] = defaultdict(list)
        """Of names and attributes, by their text."""
        self.attributes: defaultdict[str, list[ast.Attribute]] = defaultdict(list)
        """The attributes that are loaded, by their names."""
        self.definitions: dict[str, ast.AST] = {}
        """Functions and classes by their qualified names, without <locals>."""
        self.methods: defaultdict[str, list[ast.AST]] = defaultdict(list)
        """By their names."""
        self.bound: defaultdict[tuple[ast.AST, str], list[ast.AST]] = defaultdict(list)
        """The values of the names that each scope binds."""
        self.assigned: defaultdict[str, list[ast.expr]] = defaultdict(list)
        """The values of attributes, by their text."""
        self._at: dict[Position, ast.AST] = {}
        self._tests: dict[Position, ast.AST] = {}
        """The tests of statements: their jumps have the position of the whole statement."""
        self._calls: dict[tuple[int | None, int | None], ast.Call] = {}
        """By their ends: no two calls end with the same parenthesis."""
        self._stored: defaultdict[ast.AST, set[str]] = defaultdict(set)
        """The names that each function, comprehension or module binds: each scope."""
        self._outer: dict[tuple[ast.AST, str], ast.AST] = {}
        """The scopes of names that are global or nonlocal in a function."""
        self._loads_by_scope: dict[str, dict[ast.AST, list[ast.expr]]] = {}
        self._loads_of_self: dict[ast.ClassDef, list[ast.expr]] = {}
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
        for node in self.parents:
            self._add(node)
        for node in self.parents:
            if isinstance(node, ast.Global | ast.Nonlocal):
                inner = self.function(node)
                for name in node.names:
                    around = tree if isinstance(node, ast.Global) else self.parents[inner]
                    self._outer[inner, name] = self.binder(around, name)
        for node in self.parents:
            for name, value in _bindings(node):
                defines = isinstance(node, (*FUNCTIONS, ast.ClassDef))
                around = self.parents[node] if defines else node
                self.bound[self.binder(around, name), name].append(value)

    def _add(self, node: ast.AST) -> None:
        if isinstance(node, ast.expr | ast.For | ast.AsyncFor):
            place = (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)
            self._at.setdefault(place, node)
        match node:
            case ast.If(test=test) | ast.While(test=test) | ast.Assert(test=test):
                place = (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)
                self._tests[place] = test
            case ast.Call():
                self._calls[node.end_lineno, node.end_col_offset] = node
            case ast.Name(id=name, ctx=ast.Load()):
                self.loads[name].append(node)
            case ast.Name(id=name):
                walrus = isinstance(self.parents[node], ast.NamedExpr)
                self._stored[self.function(node) if walrus else self._scope(node)].add(name)
            case ast.Attribute(attr=name, ctx=ast.Load()):
                if text := text_of(node):
                    self.loads[text].append(node)
                self.attributes[name].append(node)
            case ast.arg(arg=name):
                self._stored[self.function(node)].add(name)
            case ast.alias():
                self._stored[self.function(node)].add(_imported(node))
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                self._stored[self.function(self.parents[node])].add(name)
                self.definitions[self._qualified(node)] = node
                if isinstance(self.parents[node], ast.ClassDef):
                    self.methods[name].append(node)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    if isinstance(target, ast.Attribute) and (text := text_of(target)):
                        self.assigned[text].append(value)

    def place(self, node: ast.AST) -> str:
        """The line of a node, as in "train.py:8"."""
        return f"{Path(self._file).name}:{getattr(node, 'lineno', 0)}"

    def variable(self, name: str) -> object:
        """What the module binds to the name now, or None."""
        module = sys.modules.get(self._module) if isinstance(self._module, str) else None
        variables = getattr(module, "__dict__", {})
        return variables.get(name) if variables.get("__file__") == self._file else None

    def at(self, position: Position) -> ast.AST | None:
        """The expression that an instruction of this position evaluates."""
        if test := self._tests.get(position):
            return test
        node = self._calls.get((position[1], position[3])) or self._at.get(position)
        match node:
            case ast.For(iter=of) | ast.AsyncFor(iter=of):
                return of
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                return node.generators[0].iter
        return node

    def _scope(self, node: ast.AST) -> ast.AST:
        """The innermost function or comprehension of a node, or the module."""
        while not isinstance(node, (*FUNCTIONS, *COMPREHENSIONS, ast.Module)):
            node = self.parents[node]
        return node

    def function(self, node: ast.AST) -> ast.AST:
        """The innermost function of a node, or the module."""
        while not isinstance(node, (*FUNCTIONS, ast.Module)):
            node = self.parents[node]
        return node

    def class_of(self, function: ast.AST) -> ast.ClassDef | None:
        """Of a method."""
        parent = self.parents.get(function)
        return parent if isinstance(parent, ast.ClassDef) else None

    def self_of(self, function: ast.AST) -> str | None:
        """The parameter that is the object of a method."""
        if self.class_of(function) is None or "staticmethod" in decorators(function):
            return None
        return next(iter(positional(function)), None)

    def binder(self, node: ast.AST, name: str) -> ast.AST:
        """The scope around the node that binds the name there."""
        scope = self._scope(node)
        while not isinstance(scope, ast.Module):
            if (scope, name) in self._outer:
                return self._outer[scope, name]
            if name in self._stored[scope]:
                break
            scope = self._scope(self.parents[scope])
        return scope

    def variable_loads(self, name: str, scope: ast.AST) -> Sequence[ast.expr]:
        """The expressions that load this variable of the scope."""
        if name not in self._loads_by_scope:
            by_scope = self._loads_by_scope[name] = defaultdict(list)
            for load in self.loads.get(name, ()):
                by_scope[self.binder(load, name)].append(load)
        return self._loads_by_scope[name].get(scope, ())

    def loads_of_self(self, of: ast.ClassDef) -> list[ast.expr]:
        """In the methods of the class and of those above and below it in this file."""
        if of not in self._loads_of_self:
            self._loads_of_self[of] = [
                load
                for methods in self.methods.values()
                for method in methods
                if (name := self.self_of(method)) and self.is_related(self.parents[method], of)
                for load in self.variable_loads(name, method)
            ]
        return self._loads_of_self[of]

    def is_related(self, one: ast.AST, other: ast.AST) -> bool:
        """Is one of these classes the other, or above it in this file?"""
        return other in self._line(one) or one in self._line(other)

    def _line(self, of: ast.AST) -> list[ast.AST]:
        """The class and those above it in this file."""
        line = [of]
        for each in line:
            for base in each.bases if isinstance(each, ast.ClassDef) else ():
                above = self.definitions.get(name_of(base))
                if isinstance(above, ast.ClassDef) and above not in line:
                    line.append(above)
        return line

    def _qualified(self, node: ast.AST) -> str:
        names = []
        at: ast.AST | None = node
        while at is not None:
            if isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.append(at.name)
            at = self.parents.get(at)
        return ".".join(reversed(names))


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The names that a node binds, with the values. A value of no expression is the name itself."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name, node
        case ast.arg(arg=name):
            yield name, node
        case ast.alias():
            yield _imported(node), node
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                for each in ast.walk(target):
                    if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                        yield each.id, value if each is target else each
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
            yield name, value
        case ast.NamedExpr(target=ast.Name(id=name), value=value):
            yield name, value
        case ast.For(target=target) | ast.comprehension(target=target):
            for each in ast.walk(target):
                if isinstance(each, ast.Name):
                    yield each.id, each
        case ast.withitem(optional_vars=ast.Name(id=name) as target):
            yield name, target


def _imported(node: ast.alias) -> str:
    """The name that an import binds."""
    return node.asname or node.name.partition(".")[0]


def positional(function: ast.AST) -> list[str]:
    """The names of the parameters that take positional arguments."""
    arguments = getattr(function, "args", None)
    if not isinstance(arguments, ast.arguments):
        return []
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args)]


def decorators(of: ast.AST) -> set[str]:
    """The names of its decorators, also of those that are called."""
    return {
        name_of(each.func if isinstance(each, ast.Call) else each)
        for each in getattr(of, "decorator_list", ())
    }


def text_of(node: ast.expr) -> str:
    """Of names and of attributes of names; others have none."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name) if before := text_of(value):
            return f"{before}.{name}"
    return ""


def name_of(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


_LIBRARIES = (sysconfig.get_path("stdlib") + "/", str(Path(__file__).parents[1]) + "/")


def is_of_program(file: str) -> bool:
    """Is the file source, and none of Python, an installed package, or this package?"""
    return not file.endswith((".so", ".pyd")) and not (
        "-packages/" in file or file.startswith((*_LIBRARIES, "<frozen "))
    )


_sources: dict[tuple[str, str], Source | None] = {}


def source_of(file: str, variables: dict[str, Any]) -> Source | None:
    """`variables` are those of the file's module. The file of unknown source has none."""
    text = "".join(linecache.getlines(file, variables))
    if text and (file, text) not in _sources:
        _sources[file, text] = _parsed(file, text, variables.get("__name__"))
    return _sources.get((file, text))


def _parsed(file: str, text: str, module: object) -> Source | None:
    try:
        with warnings.catch_warnings():  # Python gave those of this file already
            warnings.simplefilter("ignore")
            return Source(ast.parse(text, file), file, module)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


MAX_LINES = 20_000
"""To parse so many takes five seconds."""
_searched: list[int] = []
"""The numbers of lines of the files that were parsed for a text in them."""


def sources_with(*texts: str) -> list[Source]:
    """The files of the program that contain one of the texts.

    It parses MAX_LINES lines in all calls together. It leaves out the files that are then not
    parsed, for a number is shown more often than it decides.
    """
    found = [
        source
        for (_, of), source in list(_sources.items())
        if source and source.is_of_program and any(text in of for text in texts)
    ]
    parsed = {file for file, _ in list(_sources)}
    for module in list(sys.modules.values()):
        file = module.__dict__.get("__file__") if type(module) is ModuleType else None
        if not isinstance(file, str) or file in parsed or not is_of_program(file):
            continue
        lines = linecache.getlines(file, module.__dict__)
        whole = "".join(lines)
        if not any(text in whole for text in texts):
            continue
        if sum(_searched) + len(lines) <= MAX_LINES:
            _searched.append(len(lines))
            if source := source_of(file, module.__dict__):
                found.append(source)
    return found
