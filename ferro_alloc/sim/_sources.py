"""The parsed files of a program: what their names are bound to, and where these are loaded."""

from __future__ import annotations

import ast
import linecache
import sys
import sysconfig
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
SCOPES = (*FUNCTIONS, *COMPREHENSIONS, ast.Module)
ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
Position = tuple[int | None, int | None, int | None, int | None]
"""The first and the last line, the first and the last column, as of `co_positions`."""


def position_of(frame: FrameType) -> Position:
    """Of the instruction that the frame runs now."""
    positions = frame.f_code.co_positions()
    return next(islice(positions, frame.f_lasti // 2, None))


class Source:
    """A parsed file of the module with this name."""

    def __init__(self, tree: ast.Module, file: str, module: object) -> None:
        self.tree = tree
        self.file = file
        self.module = module
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
        self.texts: set[str] = set()
        self._stores: defaultdict[str, list[ast.AST]] = defaultdict(list)
        self._blocks: dict[ast.AST, tuple[Sequence[ast.stmt], int]] = {}
        """The list of each statement, and its place there."""
        self._loads_of: dict[str, defaultdict[ast.AST, list[ast.expr]]] = {}
        self._stores_by_scope: dict[str, dict[ast.AST, dict[ast.AST | None, list[ast.AST]]]] = {}
        self._loads_of_self: dict[ast.ClassDef, list[ast.expr]] = {}
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
            for block in (getattr(node, name, ()) for name in ("body", "orelse", "finalbody")):
                if isinstance(block, list):
                    self._blocks.update((each, (block, i)) for i, each in enumerate(block))
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
            case ast.Constant(value=str(text)):
                self.texts.add(text)
            case ast.Call():
                self._calls[node.end_lineno, node.end_col_offset] = node
            case ast.Name(id=name, ctx=ast.Load()):
                self.loads[name].append(node)
            case ast.Name(id=name):
                self._stores[name].append(node)
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
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                name = node.name
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
        return f"{Path(self.file).name}:{getattr(node, 'lineno', 0)}"

    def variable(self, name: str) -> object:
        """What the module binds to the name now, or None."""
        module = sys.modules.get(self.module) if isinstance(self.module, str) else None
        variables = getattr(module, "__dict__", {})
        return variables.get(name) if variables.get("__file__") == self.file else None

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

    def spanning(self, position: Position) -> ast.AST | None:
        """The expression that has exactly this position."""
        return self._at.get(position)

    def around(self, node: ast.AST | None, end: ast.AST | None = None) -> Iterator[ast.AST]:
        """The node and those around it, within `end`."""
        while node is not None and node is not end:
            yield node
            node = self.parents.get(node)

    def _scope(self, node: ast.AST) -> ast.AST:
        """The innermost function or comprehension of a node, or the module."""
        return next(each for each in self.around(node) if isinstance(each, SCOPES))

    def is_condition(self, node: ast.AST) -> bool:
        """Is it the condition of an `if`, or a part of one?"""
        at = self.parents[node]
        while isinstance(at, ast.BoolOp) or (
            isinstance(at, ast.UnaryOp) and isinstance(at.op, ast.Not)
        ):
            node, at = at, self.parents[at]
        return isinstance(at, ast.If) and at.test is node

    def function(self, node: ast.AST) -> ast.AST:
        """The innermost function of a node, or the module."""
        return next(
            each for each in self.around(node) if isinstance(each, (*FUNCTIONS, ast.Module))
        )

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

    def loads_of(self, name: str, stores: Iterable[ast.AST]) -> Iterator[ast.expr]:
        """The expressions that may load what a variable of this name got at one of `stores`."""
        if name not in self._loads_of:
            by_store = self._loads_of[name] = defaultdict(list)
            for load in self.loads.get(name, ()):
                for store in set(self.stores_before(load, name, self.binder(load, name))):
                    by_store[store].append(load)
        for store in stores:
            yield from self._loads_of[name].get(store, ())

    def stores_before(self, node: ast.AST, name: str, scope: ast.AST) -> Iterator[ast.AST]:
        """The targets where this variable may have got what it is at a node. The scope stands for
        parameters, and for names of functions, classes and imports.

        A statement that binds the name hides those before it. Loops repeat, and functions run at
        any time.
        """
        around = self._stores_around(name).get(scope, {})
        is_in = self.function(node) is scope
        yield from around.get(None if is_in else scope, ())
        for at in self.around(node, scope) if is_in and around else ():
            block, place = self._blocks.get(at, ((), 0))
            for each in map(block.__getitem__, range(place - 1, -1, -1)):
                yield from around.get(each, ())
                if isinstance(each, ast.Assign) and any(of in around for of in each.targets):
                    return
            match self.parents[at]:
                case ast.For(target=of, body=body) | ast.AsyncFor(target=of, body=body) if (
                    block is body and of in around
                ):
                    yield from around[of]
                    return
                case parent if not isinstance(parent, ASSIGNMENTS) and parent is not scope:
                    yield from around.get(parent, ())
        yield scope

    def _stores_around(self, name: str) -> dict[ast.AST, dict[ast.AST | None, list[ast.AST]]]:
        """For each scope, the targets that bind the variable within each node of the scope, and,
        for None, those in other functions."""
        if name not in self._stores_by_scope:
            found = self._stores_by_scope[name] = {}
            for store in self._stores[name]:
                scope = self.binder(store, name)
                around = found.setdefault(scope, defaultdict(list))
                is_in = self.function(store) is scope
                for at in (*self.around(store, scope), scope, *(() if is_in else (None,))):
                    around[at].append(store)
        return self._stores_by_scope[name]

    def loads_of_self(self, of: ast.ClassDef) -> list[ast.expr]:
        """In the methods of the class and of those above and below it in this file."""
        if of not in self._loads_of_self:
            self._loads_of_self[of] = [
                load
                for methods in self.methods.values()
                for method in methods
                if (name := self.self_of(method)) and self.is_related(self.parents[method], of)
                for load in self.loads_of(name, [method])
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
        around = [each.name for each in self.around(node) if isinstance(each, DEFINITIONS)]
        return ".".join(reversed(around))


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


def is_of_torch(file: str) -> bool:
    folders = getattr(sys.modules.get("torch"), "__path__", ())
    return any(file.startswith(f"{folder}/") for folder in folders)


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


def parsed_sources() -> list[Source]:
    """The files of the program that are parsed."""
    return [each for each in list(_sources.values()) if each and each.is_of_program]


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
