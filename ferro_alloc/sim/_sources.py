"""The parsed files of a program: what their names are bound to, and where these are loaded."""

from __future__ import annotations

import ast
import gc
import linecache
import os
import re
import sys
import sysconfig
import threading
import warnings
import weakref
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain, count
from operator import is_, itemgetter
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from ferro_alloc.sim._texts import Texts, attributes, bases, called
from ferro_alloc.sim._variables import DEFINITIONS, Variable, Variables

ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
Position = tuple[int | None, int | None, int | None, int | None]
"""The first and the last line, the first and the last column, as of `co_positions`."""


class _Lock:
    """Held by a search, for the modules it uses keep what is not complete yet."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        """A thread that the child of a fork lacks may hold the lock."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


search_lock = _Lock()


class _Code:
    def __init__(self, of: CodeType) -> None:
        self.of = weakref.ref(of)
        self.number = _numbers.setdefault(of, len(_numbers))

    def position(self, instruction: int) -> Position:
        first, last, start, end = self._positions[4 * instruction : 4 * instruction + 4]
        return _known(first), _known(last), _known(start), _known(end)

    @cached_property
    def _positions(self) -> array[int]:
        """Four numbers for each instruction; -1 for those that it has not."""
        of = self.of()
        each = chain.from_iterable(of.co_positions() if of is not None else ())
        return array("i", (-1 if number is None else number for number in each))


def _known(number: int) -> int | None:
    return None if number < 0 else number


_numbers: dict[CodeType, int] = {}
_codes: dict[int, _Code] = {}
"""By the identities of code objects that exist or existed."""


def _code(of: CodeType) -> _Code:
    found = _codes.get(id(of))
    if found is None or found.of() is not of:
        found = _codes[id(of)] = _Code(of)
    return found


def number_of(code: CodeType) -> int:
    """The same number for equal code. Python's hash of code goes through all that is within it, so
    that a key of it costs as much as the whole file."""
    return _code(code).number


def position_of(frame: FrameType) -> Position:
    """Of the instruction that the frame runs now."""
    return _code(frame.f_code).position(frame.f_lasti // 2)


class Source:
    """A parsed file of the module with this name."""

    def __init__(self, tree: ast.Module, file: str, module: object) -> None:
        self.tree = tree
        self.file = file
        self.module = module
        self.is_of_program = is_of_program(file)
        self.place_among_all = next(_places)
        """In the order in which the files were parsed."""
        self.variables = Variables(tree)
        self.parents = self.variables.parents
        self.loads: defaultdict[str, list[ast.expr]] = defaultdict(list)
        """Of names and attributes, by their text."""
        self.attributes: defaultdict[str, list[ast.Attribute]] = defaultdict(list)
        """The attributes that are loaded, by their names."""
        self.all_attributes: defaultdict[str, list[ast.Attribute]] = defaultdict(list)
        """By their names."""
        self.generators: set[ast.AST] = set()
        self.yields: list[ast.Yield] = []
        self.handlers: list[ast.ExceptHandler] = []
        """Those that name the exception."""
        self.rates: list[ast.Subscript] = []
        """The loads of an element "lr", as of `optimizer.param_groups[0]`."""
        self.definitions: dict[str, ast.AST] = {}
        """Functions and classes by their qualified names, without <locals>."""
        self.methods: defaultdict[str, list[ast.AST]] = defaultdict(list)
        """By their names."""
        self.assigned: defaultdict[str, list[ast.expr]] = defaultdict(list)
        """The values of attributes, by their text."""
        self.derived: defaultdict[str, list[ast.ClassDef]] = defaultdict(list)
        """The classes that have a base of this name."""
        self._classes: list[ast.ClassDef] = []
        self._at: dict[Position, ast.AST] = {}
        self._tests: dict[Position, ast.AST] = {}
        """The tests of statements: their jumps have the position of the whole statement."""
        self._calls: dict[tuple[int | None, int | None], ast.Call] = {}
        """By their ends: no two calls end with the same parenthesis."""
        self.texts: set[str] = set()
        self._stores: defaultdict[str, list[ast.Name]] = defaultdict(list)
        self._blocks: dict[ast.AST, tuple[Sequence[ast.stmt], int]] = {}
        """The list of each statement, and its place there."""
        self._loads_of: dict[str, defaultdict[ast.AST, list[ast.expr]]] = {}
        self._stores_by_scope: dict[str, dict[ast.AST, _Stores]] = {}
        self._values: dict[Variable, list[ast.AST]] = {}
        self._assigned_in: dict[str, defaultdict[ast.AST, list[ast.expr]]] = {}
        self._loads_of_self: dict[ast.ClassDef, list[ast.expr]] = {}
        for node in (tree, *self.parents):
            self._add(node)

    def _add(self, node: ast.AST) -> None:
        if not isinstance(node, ast.expr):
            for block in (getattr(node, name, ()) for name in ("body", "orelse", "finalbody")):
                if isinstance(block, list):
                    self._blocks.update((each, (block, i)) for i, each in enumerate(block))
        if isinstance(node, ast.expr | ast.For | ast.AsyncFor | ast.With):
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
            case ast.Attribute(attr=name):
                self.all_attributes[name].append(node)
                if isinstance(node.ctx, ast.Load):
                    self.attributes[name].append(node)
                    if text := text_of(node):
                        self.loads[text].append(node)
            case ast.Yield() | ast.YieldFrom():
                self.generators.add(self.function(node))
                if isinstance(node, ast.Yield):
                    self.yields.append(node)
            case ast.ExceptHandler(name=str()):
                self.handlers.append(node)
            case ast.Subscript(slice=ast.Constant(value="lr"), ctx=ast.Load()):
                self.rates.append(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self.definitions[self._qualified(node)] = node
                if isinstance(node, ast.ClassDef):
                    self._classes.append(node)
                    for base in dict.fromkeys(map(name_of, node.bases)):
                        self.derived[base].append(node)
                if isinstance(self.parents[node], ast.ClassDef):
                    self.methods[node.name].append(node)
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
        """The expression that an instruction of this position evaluates, or the `with` statement
        whose context managers it enters or leaves."""
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
        return self.variables.functions[node]

    def class_of(self, function: ast.AST) -> ast.ClassDef | None:
        """Of a method."""
        parent = self.parents.get(function)
        return parent if isinstance(parent, ast.ClassDef) else None

    def self_of(self, function: ast.AST) -> str | None:
        """The parameter that is the object of a method."""
        if self.class_of(function) is None or "staticmethod" in decorators(function):
            return None
        return next(iter(positional(function)), None)

    def values_of(self, variable: Variable) -> list[ast.AST]:
        """What is bound to a variable. A value of no expression is its name itself."""
        if variable not in self._values:
            values = (self._value_of(each) for each in self.variables.bindings[variable])
            self._values[variable] = [each for each in values if each is not None]
        return self._values[variable]

    def _value_of(self, binding: ast.AST) -> ast.AST | None:
        match binding, self.parents[binding]:
            case ast.Name(), ast.Assign(value=value) | ast.AnnAssign(value=value):
                return value
            case ast.Name(), ast.NamedExpr(value=value):
                return value
            case (_, ast.AugAssign()) | (ast.ExceptHandler() | ast.pattern(), _):
                return None
        return binding

    def assigned_in(self, of: ast.ClassDef, text: str) -> list[ast.expr]:
        """The values that the class assigns to an attribute with this text."""
        if text not in self._assigned_in:
            found = self._assigned_in[text] = defaultdict(list)
            for value in self.assigned.get(text, ()):
                for each in self.around(value):
                    if isinstance(each, ast.ClassDef):
                        found[each].append(value)
        return self._assigned_in[text].get(of, [])

    def loads_of(self, name: str, stores: Iterable[ast.AST]) -> Iterator[ast.expr]:
        """The expressions that may load what a variable of this name got at one of `stores`."""
        if name not in self._loads_of:
            by_store = self._loads_of[name] = defaultdict(list)
            for load in self.loads.get(name, ()):
                assert isinstance(load, ast.Name)
                for store in set(self.stores_before(load)):
                    by_store[store].append(load)
        for store in stores:
            yield from self._loads_of[name].get(store, ())

    def stores_before(self, node: ast.Name) -> Iterator[ast.AST]:
        """The targets where the variable of a name may have got what it is there. The scope stands
        for parameters, and for names of functions, classes and imports.

        A statement that binds the name hides those before it. Loops repeat, and functions run at
        any time.
        """
        scope, name = self.variables.of(node)
        stores = self._stores_around(name).get(scope, NO_STORES)
        is_in = self.function(node) is scope
        yield from stores.around.get(None if is_in else scope, ())
        top = self.variables.tops[node]
        yield from stores.around.get(top, ()) if top is not node else ()
        if is_in and stores.around:
            yield from self._stores_outside(top, scope, stores)
        else:
            yield scope

    def _stores_outside(self, at: ast.AST, scope: ast.AST, stores: _Stores) -> list[ast.AST]:
        """Those before a statement, and before those around it. A statement without targets beside
        it is looked at once, for it may lie deep."""
        path = []
        while at is not scope and at not in stores.before:
            path.append(at)
            at = self.parents[at]
        found = stores.before.get(at, [scope])
        for each in reversed(path):
            beside, hide = self._stores_beside(each, scope, stores)
            if hide:
                found = beside
            elif beside:
                found = [*beside, *found]
            else:
                stores.before[each] = found
        return found

    def _stores_beside(
        self, at: ast.AST, scope: ast.AST, stores: _Stores
    ) -> tuple[list[ast.AST], bool]:
        """The targets in what stands before a statement in its block, and in what is around the
        block; and whether they hide all others."""
        found: list[ast.AST] = []
        block, place = self._blocks.get(at, ((), 0))
        places = stores.places.get(id(block), ())
        for i in range(bisect_left(places, place) - 1, -1, -1):
            each = block[places[i]]
            found += stores.around[each]
            if isinstance(each, ast.Assign) and any(of in stores.around for of in each.targets):
                return found, True
        match self.parents[at]:
            case ast.For(target=of, body=body) | ast.AsyncFor(target=of, body=body) if (
                block is body and of in stores.around
            ):
                return [*found, *stores.around[of]], True
            case parent if not isinstance(parent, ASSIGNMENTS) and parent is not scope:
                found += stores.around.get(parent, ())
        return found, False

    def _stores_around(self, name: str) -> dict[ast.AST, _Stores]:
        if name not in self._stores_by_scope:
            found = self._stores_by_scope[name] = {}
            for store in self._stores[name]:
                scope, _ = self.variables.of(store)
                stores = found.setdefault(scope, _Stores())
                is_in = self.function(store) is scope
                top = self.variables.tops[store]
                for at in (*self.around(top, scope), scope, *(() if is_in else (None,))):
                    if at in self._blocks and at not in stores.around:
                        block, place = self._blocks[at]
                        stores.places[id(block)].append(place)
                    stores.around[at].append(store)
            for stores in found.values():
                for places in stores.places.values():
                    places.sort()
        return self._stores_by_scope[name]

    def loads_of_self(self, of: ast.ClassDef) -> list[ast.expr]:
        """In the methods of the class and of those above and below it in this file."""
        if of not in self._loads_of_self:
            methods = [each for one in self._related[of] for each in self._methods_of.get(one, ())]
            self._loads_of_self[of] = [
                load
                for _, method in sorted(methods, key=itemgetter(0))
                if (name := self.self_of(method))
                for load in self.loads_of(name, [method])
            ]
        return self._loads_of_self[of]

    def is_related(self, one: ast.AST, other: ast.AST) -> bool:
        """Is one of these classes the other, or above it in this file?"""
        return other in self._related[one]

    @cached_property
    def _methods_of(self) -> dict[ast.AST, list[tuple[int, ast.AST]]]:
        """Of each class, with their places among all methods of the file."""
        found = defaultdict(list)
        for place, each in enumerate(chain.from_iterable(self.methods.values())):
            found[self.parents[each]].append((place, each))
        return found

    @cached_property
    def _related(self) -> dict[ast.AST, set[ast.AST]]:
        """Of each class, itself and those above and below it in this file."""
        found: defaultdict[ast.AST, set[ast.AST]] = defaultdict(set)
        for of in self._classes:
            line: set[ast.AST | None] = {of}
            rest = [of]
            for each in rest:
                found[of].add(each)
                found[each].add(of)
                bases = {self.definitions.get(name_of(base)) for base in each.bases} - line
                rest += (base for base in bases if isinstance(base, ast.ClassDef))
                line |= bases
        return found

    def _qualified(self, node: ast.AST) -> str:
        names = []
        while isinstance(node, DEFINITIONS):
            names.append(node.name)
            node = self.variables.scope(node)
        return ".".join(reversed(names))


class _Stores:
    """The targets that bind a variable."""

    def __init__(self) -> None:
        self.around: defaultdict[ast.AST | None, list[ast.AST]] = defaultdict(list)
        """By the statements around them in the scope, and the outermost expressions of these; for
        the scope, all; for None, those in other functions."""
        self.places: defaultdict[int, list[int]] = defaultdict(list)
        """The places in each block, by its identity, of the statements that have targets."""
        self.before: dict[ast.AST, list[ast.AST]] = {}
        """By a statement, those outside it that a load in it may have."""


NO_STORES = _Stores()


def positional(function: ast.AST) -> list[str]:
    """The names of the parameters that take positional arguments."""
    arguments = getattr(function, "args", None)
    if not isinstance(arguments, ast.arguments):
        return []
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args)]


def parameters(function: ast.AST) -> list[str]:
    """The names of those that get one argument each."""
    arguments = getattr(function, "args", None)
    keywords = arguments.kwonlyargs if isinstance(arguments, ast.arguments) else []
    return [*positional(function), *(each.arg for each in keywords)]


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


_places = count()
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


_texts: dict[str, tuple[list[str], str]] = {}


def text_in(file: str, variables: dict[str, Any]) -> str:
    """The same object as long as `linecache` has the same lines."""
    lines = linecache.getlines(file, variables)
    known = _texts.get(file)
    if known is None or known[0] is not lines:
        known = _texts[file] = (lines, "".join(lines))
    return known[1]


def source_of(file: str, variables: dict[str, Any]) -> Source | None:
    """`variables` are those of the file's module. The file of unknown source has none."""
    text = text_in(file, variables)
    if text and (file, text) not in _sources:
        _sources[file, text] = _parsed(file, text, variables.get("__name__"))
        _searchable.add((file, text), text)
    return _sources.get((file, text))


def _parsed(file: str, text: str, module: object) -> Source | None:
    try:
        # Python gave the warnings of this file already.
        with warnings.catch_warnings(), without_collection():
            warnings.simplefilter("ignore")
            return Source(ast.parse(text, file), file, module)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@contextmanager
def without_collection() -> Iterator[None]:
    """Python's collector would go through the nodes of a large file several times."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def parsed_sources() -> list[Source]:
    """The files of the program that are parsed."""
    return [each for each in list(_sources.values()) if each and each.is_of_program]


_modules: tuple[list[object], dict[str, list[dict[str, Any]]]] = ([], {})


def modules_of_program() -> dict[str, list[dict[str, Any]]]:
    """The variables of the modules that each file of the program has made: the same object as long
    as no module is loaded."""
    global _modules
    now = [_LIBRARIES, *list(sys.modules.values())]
    if len(now) != len(_modules[0]) or not all(map(is_, now, _modules[0])):
        found: dict[str, list[dict[str, Any]]] = {}
        for module in now:
            file = module.__dict__.get("__file__") if type(module) is ModuleType else None
            if isinstance(file, str) and is_of_program(file):
                found.setdefault(file, []).append(module.__dict__)
        _modules = (now, found)
    return _modules[1]


MAX_LINES = 20_000
"""To parse so many takes five seconds."""
_searched: list[int] = []
"""The numbers of lines of the files that were parsed for a text in them."""
_searchable = Texts()
"""Of the files that were parsed, and of the modules when a text was last looked for."""
_modules_searched: list[object] = []


def sources_with(*texts: str) -> list[Source]:
    """The files of the program that contain one of the texts, which are as in "name(", "def name(",
    "module.name(", ".name" or "class (name", with the name as a word.

    It parses MAX_LINES lines in all calls together. It leaves out the files that are then not
    parsed, for a number is shown more often than it decides.
    """
    modules = modules_of_program()
    if not _modules_searched or _modules_searched[0] is not modules:
        _modules_searched[:] = [modules]
        for file, of_file in modules.items():
            text = text_in(file, of_file[0])
            _searchable.add((file, text), text)
    keys = dict.fromkeys(key for text in texts for key in _keys_with(text))
    found = [source for key in keys if (source := _sources.get(key)) and source.is_of_program]
    found.sort(key=lambda source: source.place_among_all)
    rest = [key for key in keys if key not in _sources and key[0] in modules]
    parsed = {file for file, _ in list(_sources)} if rest else set()
    lines = sum(_searched)
    for file, text in rest:
        variables = modules[file][0]
        if file in parsed or text_in(file, variables) != text:
            continue
        count = len(linecache.getlines(file, variables))
        if lines + count <= MAX_LINES:
            lines += count
            _searched.append(count)
            if source := source_of(file, variables):
                found.append(source)
    return found


def _keys_with(text: str) -> Iterator[tuple[str, str]]:
    """The files, with their texts, that contain it."""
    *before, word = re.findall(r"\w+", text)
    is_base = text == f"class ({word}"
    kind = bases if is_base else called if text.endswith("(") else attributes
    for file, of in _searchable.keys_with(kind, word):
        if is_base or not before or text in of:
            yield file, of
