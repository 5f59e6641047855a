"""The functions and classes of a program that its expressions stand for."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from types import FunctionType, ModuleType
from typing import NamedTuple

from ferro_alloc.sim._sources import (
    Source,
    decorators,
    is_of_program,
    name_of,
    parsed_sources,
    positional,
    source_of,
    sources_with,
    text_of,
)
from ferro_alloc.sim._variables import FUNCTIONS


class Function(NamedTuple):
    source: Source
    node: ast.AST
    given: int = 0
    """The number of arguments that it has of a `partial`."""


class Class(NamedTuple):
    source: Source
    node: ast.ClassDef


class Object(NamedTuple):
    of: Class


class Foreign:
    """None of the program's functions and classes, nor an object of these."""


FOREIGN = Foreign()
VALUES = (ast.Name, ast.Attribute, ast.Lambda, ast.Call)
PROPERTIES = {"property", "cached_property"}
NO_USERS = (*FUNCTIONS, ast.ClassDef, ast.Attribute, ast.Compare)
Meaning = Function | Class | Object | Foreign | ModuleType | None
"""None: unknown."""


_meanings: dict[ast.AST, Meaning] = {}
_looked_for: set[ast.AST] = set()
"""Expressions whose meaning is not known yet."""
_of_all: dict[tuple[ast.AST, str], Meaning] = {}
"""Of variables and attributes that get several values."""


def meaning(source: Source, expression: ast.AST) -> Meaning:
    """What an expression stands for."""
    if expression not in _meanings:
        _meanings[expression] = None  # as long as it is looked for
        _looked_for.add(expression)
        try:
            _meanings[expression] = _meaning(source, expression)
        finally:
            _looked_for.discard(expression)
    return _meanings[expression]


def _meaning(source: Source, expression: ast.AST) -> Meaning:
    match expression:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            return None if "overload" in decorators(expression) else Function(source, expression)
        case ast.ClassDef():
            return Class(source, expression)
        case ast.Name(id=name, ctx=ast.Load()):
            return _meaning_of_name(source, expression, name)
        case ast.arg(arg=name, annotation=annotation):
            function = source.function(expression)
            of = source.class_of(function)
            if of is not None and source.self_of(function) == name:
                return Object(Class(source, of))
            found = meaning(source, annotation) if annotation else None
            return Object(found) if isinstance(found, Class) and not _is_protocol(found) else None
        case ast.alias():
            return _meaning_of_import(source.parents[expression], expression)
        case ast.Attribute(value=value, attr=name):
            return _meaning_of_attribute(source, expression, value, name)
        case ast.Call(func=ast.Name(id="super")):
            of = source.class_of(source.function(expression))
            bases = above(Class(source, of)) if of else ()
            return Object(bases[0]) if bases else FOREIGN
        case ast.Call(func=function, args=[of, *given]) if name_of(function) == "partial":
            found = meaning(source, of)
            return found._replace(given=len(given)) if isinstance(found, Function) else None
        case ast.Call(func=ast.Name(id="getattr")):
            return None
        case ast.Call(func=function, args=[_, names]) if name_of(function) == "namedtuple":
            return Class(source, _named_tuple(function, names))
        case ast.Call(func=function):
            found = meaning(source, function)
            if isinstance(found, Class):
                return Object(found)
            return found if isinstance(found, Foreign) else None
        case ast.expr() if not isinstance(
            expression, ast.Name | ast.Starred | ast.Subscript | ast.IfExp | ast.BoolOp | ast.Await
        ):
            return FOREIGN
    return None


def _meaning_of_name(source: Source, node: ast.Name, name: str) -> Meaning:
    variable = source.variables.of(node)
    values = source.values_of(variable)
    if (known := _first_known(source, variable, values)) is not None:
        return known
    is_of_module = variable[0] is source.tree
    if is_of_module and (value := source.variable(name)) is not None:
        return _meaning_of_object(value)
    return FOREIGN if not values and hasattr(builtins, name) else None


def _meaning_of_import(statement: ast.AST, name: ast.alias) -> Meaning:
    """Relative imports are known as variables of the module only."""
    match statement:
        case ast.Import():
            return sys.modules.get(name.name if name.asname else name.name.partition(".")[0])
        case ast.ImportFrom(module=str() as of, level=0):
            module = sys.modules.get(of)
            variables = module.__dict__ if module is not None else {}
            return _meaning_of_object(variables[name.name]) if name.name in variables else None
    return None


def _meaning_of_attribute(source: Source, node: ast.expr, value: ast.expr, name: str) -> Meaning:
    match meaning(source, value):
        case ModuleType() as module:
            return _meaning_of_object(module.__dict__.get(name))
        case Class() as of:
            return method(of, name) or FOREIGN
        case Object(of=of):
            if (found := method(of, name)) is not None:
                return found
            return _meaning_of_field(of, name)
        case Foreign():
            return FOREIGN
    text = text_of(node)
    return _first_known(source, (source.tree, f".{text}"), source.assigned.get(text, ()))


def _meaning_of_field(of: Class, name: str) -> Meaning:
    for each in (of, *above(of)):
        text = f"self.{name}"
        if inside := each.source.assigned_in(each.node, text):
            return _first_known(each.source, (each.node, f".{text}"), inside)
    return FOREIGN


def _first_known(source: Source, of: tuple[ast.AST, str], values: Sequence[ast.AST]) -> Meaning:
    """Of the values of a variable or an attribute. One that has a function or an object of the
    program in one place has it in all."""
    if of not in _of_all:
        known = _first_known_of([meaning(source, each) for each in values])
        if not _looked_for.isdisjoint(values):
            return known
        _of_all[of] = known
    return _of_all[of]


def _first_known_of(found: list[Meaning]) -> Meaning:
    for each in found:
        if isinstance(each, Function | Class | Object | ModuleType):
            return each
    return FOREIGN if found and all(isinstance(each, Foreign) for each in found) else None


def _meaning_of_object(value: object) -> Meaning:
    kind = type(value)
    if kind is ModuleType:
        assert isinstance(value, ModuleType)
        return value
    if kind is FunctionType or issubclass(kind, type):
        return _definition(value)
    of = _definition(kind)
    return Object(of) if isinstance(of, Class) else of


def _definition(of: object) -> Meaning:
    """Of a function or class that a module has."""
    module = sys.modules.get(getattr(of, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if module is None or not isinstance(file, str) or not is_of_program(file):
        return FOREIGN
    source = source_of(file, module.__dict__)
    name = str(getattr(of, "__qualname__", "")).replace("<locals>.", "")
    if source is None:
        return None
    if (node := source.definitions.get(name)) is None:  # a call made it
        variable = (source.tree, name)
        return _first_known(source, variable, source.values_of(variable))
    return Class(source, node) if isinstance(node, ast.ClassDef) else Function(source, node)


def above(of: Class) -> list[Class]:
    """The classes of the program that this class is derived from."""
    line = {of: None}
    rest = [of]
    for each in rest:
        for base in each.node.bases:
            found = meaning(each.source, base)
            if isinstance(found, Class) and found not in line:
                line[found] = None
                rest.append(found)
    return rest[1:]


_below: dict[Class, tuple[int, list[Class]]] = {}
"""What `below` returned last, and how many modules there were."""


def below(of: Class) -> list[Class]:
    """The classes of the program that are derived from this class."""
    count = len(sys.modules)
    if of in _below and _below[of][0] == count:
        return _below[of][1]
    line = {of: None}
    rest = [of]
    for each in rest:
        name = each.node.name
        for source in sources_with(f"class ({name}") if name else ():
            for node in source.derived.get(name, ()):
                found = Class(source, node)
                if found not in line and each in above(found):
                    line[found] = None
                    rest.append(found)
    _below[of] = (count, rest[1:])
    return rest[1:]


def methods_of_objects(of: Class, name: str) -> list[Function]:
    """Those of this name that an object of the class, or of one derived from it, may have."""
    found = [method(each, name) for each in (of, *below(of))]
    return [each for each in dict.fromkeys(found) if each is not None]


def method(of: Class, name: str) -> Function | None:
    found = (_own_method(each, name) for each in (of, *above(of)))
    return next((each for each in found if each is not None), None)


def _own_method(of: Class, name: str) -> Function | None:
    for node in _values_in_class(of.node).get(name, ()):
        found = meaning(of.source, node)
        if isinstance(found, Function):
            return found
    return None


@cache
def _values_in_class(of: ast.ClassDef) -> dict[str, list[ast.AST]]:
    """What the lines of a class bind to each name: functions and expressions."""
    found: dict[str, list[ast.AST]] = {}
    for node in of.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.setdefault(name, []).append(node)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found.setdefault(name, []).append(value)
    return found


def getters(of: Class, name: str) -> list[tuple[Function, str]]:
    """What runs where an object loads this attribute, with the parameter that is the object."""
    return [*_accessors(of, name, 0, "__get__")]


def setters(of: Class, name: str) -> list[tuple[Function, str]]:
    """The same where the attribute is set. The value is the last parameter."""
    return [*_accessors(of, name, 1, "__set__")]


def _accessors(of: Class, name: str, place: int, special: str) -> Iterator[tuple[Function, str]]:
    """Of properties, which are made of functions at a place, and of objects with this method."""
    kinds = (PROPERTIES, {"setter"})[place]
    for each in (of, *above(of), *below(of)):
        for node in _values_in_class(each.node).get(name, ()):
            found: Meaning = None
            place_of_object = 0
            if isinstance(node, ast.FunctionDef):
                found = Function(each.source, node) if decorators(node) & kinds else None
            elif isinstance(node, ast.Call) and name_of(node.func) in kinds | {"property"}:
                found = meaning(each.source, node.args[place]) if node.args[place:] else None
            elif isinstance(made := meaning(each.source, node), Object):
                found = method(made.of, special)
                place_of_object = 1
            names = positional(found.node) if isinstance(found, Function) else []
            if isinstance(found, Function) and names[place_of_object:]:
                yield found, names[place_of_object]


def methods(of: Class, name: str) -> Iterator[Function]:
    """All definitions of this name: a property has several."""
    for each in (of, *above(of)):
        for node in _values_in_class(each.node).get(name, ()):
            if isinstance(node, ast.FunctionDef):
                yield Function(each.source, node)


def has_field(of: Class, name: str) -> bool:
    """Do its methods set this attribute of `self`, or its body a variable?"""
    return any(
        name in fields(each) or f"self.{name}" in each.source.assigned for each in (of, *above(of))
    )


def computes_fields(of: Class) -> list[Function]:
    """The methods that an object of the class may have for attributes that it lacks."""
    return methods_of_objects(of, "__getattr__") or methods_of_objects(of, "__getattribute__")


def methods_named(name: str) -> list[Function]:
    """Of all classes of the program."""
    return [
        Function(source, node)
        for source in sources_with(f"def {name}(")
        for node in source.methods[name]
    ]


def bound(of: Function) -> Iterator[tuple[Source, ast.Attribute]]:
    """Where the program passes on or stores a method of an object."""
    name = getattr(of.node, "name", "")
    for source in sources_with(f".{name}"):
        for load in source.attributes.get(name, ()):
            user = source.parents[load]
            if not isinstance(user, ast.Call) or user.func is not load:
                found = meaning(source, load)
                if found is None or (isinstance(found, Function) and found.node is of.node):
                    yield source, load


@cache
def fields(of: Class) -> dict[str, int | None]:
    """The fields of a class without `__init__`, such as a dataclass, in the order of its arguments.
    Those of a named tuple have indices."""
    bases = {name_of(base) for base in of.node.bases}
    is_tuple = not bases.isdisjoint({"NamedTuple", "namedtuple"})
    lines = [*(line for base in above(of) for line in base.node.body), *of.node.body]
    names = dict.fromkeys(
        name_of(line.target)
        for line in lines
        if isinstance(line, ast.AnnAssign) and "TypedDict" not in bases
    )
    return {name: place if is_tuple else None for place, name in enumerate(names)}


def _is_protocol(of: Class) -> bool:
    """May objects of classes that are not derived from it be passed for it?"""
    return any(
        name_of(base.value if isinstance(base, ast.Subscript) else base) == "Protocol"
        for base in of.node.bases
    )


def _named_tuple(made: ast.expr, names: ast.expr) -> ast.ClassDef:
    """The class that `namedtuple` makes of names."""
    texts = [str(each.value) for each in ast.walk(names) if isinstance(each, ast.Constant)]
    words = " ".join(texts).replace(",", " ").split()
    lines = [ast.AnnAssign(ast.Name(word), ast.Constant(None), None, 1) for word in words]
    return ast.ClassDef("", [made], [], [*lines], [])


def callable_values(source: Source, called: ast.expr) -> Iterator[Function]:
    """The functions of the program that an unknown expression may call: those that the program
    passes on or stores, and if `getattr` is called, the methods whose names it has as texts."""
    around = source.function(called)
    names = (getattr(each, "name", None) for each in (around, source.class_of(around)))
    sources_with(*(f"{name}(" for name in names if name))  # they pass functions to it
    of_program = parsed_sources()
    values: list[ast.AST] = [called]
    if isinstance(called, ast.Name):
        values += source.values_of(source.variables.of(called))
    if any(isinstance(each, ast.Call) and name_of(each.func) == "getattr" for each in values):
        texts = {text for each in of_program for text in each.texts}
        for each in of_program:
            for name in texts & each.methods.keys():
                yield from (Function(each, node) for node in each.methods[name])
        return
    for each in of_program:
        if each not in _functions_as_values:
            _functions_as_values[each] = [*_values_in(each)]
        yield from _functions_as_values[each]


_functions_as_values: dict[Source, list[Function]] = {}


def _values_in(source: Source) -> Iterator[Function]:
    """The functions that a file passes on or stores, and its methods `__call__`."""
    yield from (Function(source, node) for node in source.methods["__call__"])
    for node, parent in source.parents.items():
        user = parent
        if isinstance(node, ast.FunctionDef) and node.decorator_list and not source.class_of(node):
            user = node.decorator_list[0]  # may register it
        elif not isinstance(node, VALUES) or isinstance(parent, NO_USERS):
            continue
        if isinstance(user, ast.keyword):
            user = source.parents[user]
        if isinstance(user, ast.Call) and (
            user.func is node or meaning(source, user.func) is FOREIGN
        ):
            continue
        found = meaning(source, node)
        if isinstance(found, Function):
            yield found


def is_property(function: ast.AST) -> bool:
    return bool(decorators(function) & PROPERTIES)
