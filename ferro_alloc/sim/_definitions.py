"""The functions and classes of a program that its expressions stand for."""

from __future__ import annotations

import ast
import builtins
import sys
from types import FunctionType, ModuleType
from typing import NamedTuple

from ferro_alloc.sim._sources import (
    Source,
    decorators,
    is_of_program,
    name_of,
    source_of,
    sources_with,
    text_of,
)


class Function(NamedTuple):
    source: Source
    node: ast.AST


class Class(NamedTuple):
    source: Source
    node: ast.ClassDef


class Object(NamedTuple):
    of: Class


class Foreign:
    """None of the program's functions and classes, nor an object of these."""


FOREIGN = Foreign()
Meaning = Function | Class | Object | Foreign | ModuleType | None
"""None: unknown."""


_meanings: dict[ast.AST, Meaning] = {}


def meaning(source: Source, expression: ast.AST) -> Meaning:
    """What an expression stands for."""
    if expression not in _meanings:
        _meanings[expression] = None  # as long as it is looked for
        _meanings[expression] = _meaning(source, expression)
    return _meanings[expression]


def _meaning(source: Source, expression: ast.AST) -> Meaning:
    match expression:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            return Function(source, expression)
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
            return Object(found) if isinstance(found, Class) else None
        case ast.alias():
            return _meaning_of_import(source.parents[expression], expression)
        case ast.Attribute(value=value, attr=name):
            return _meaning_of_attribute(source, expression, value, name)
        case ast.Call(func=ast.Name(id="super")):
            of = source.class_of(source.function(expression))
            bases = above(Class(source, of)) if of else ()
            return Object(bases[0]) if bases else FOREIGN
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


def _meaning_of_name(source: Source, node: ast.expr, name: str) -> Meaning:
    values = source.bound.get((source.binder(node, name), name), ())
    found = [meaning(source, value) for value in values]
    if (known := _first_known(found)) is not None:
        return known
    if (value := source.variable(name)) is not None:
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
    values = source.assigned.get(text_of(node), ())
    return _first_known([meaning(source, each) for each in values])


def _meaning_of_field(of: Class, name: str) -> Meaning:
    for each in (of, *above(of)):
        values = each.source.assigned.get(f"self.{name}", ())
        inside = [value for value in values if _class_around(each.source, value) is each.node]
        if inside:
            return _first_known([meaning(each.source, value) for value in inside])
    return FOREIGN


def _class_around(source: Source, node: ast.AST) -> ast.AST | None:
    at: ast.AST | None = node
    while at is not None and not isinstance(at, ast.ClassDef):
        at = source.parents.get(at)
    return at


def _first_known(found: list[Meaning]) -> Meaning:
    """A variable that has a function or an object of the program in one place has it in all."""
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
    if source is None or (node := source.definitions.get(name)) is None:
        return None
    return Class(source, node) if isinstance(node, ast.ClassDef) else Function(source, node)


def above(of: Class) -> list[Class]:
    """The classes of the program that this class is derived from."""
    line = [of]
    for each in line:
        for base in each.node.bases:
            found = meaning(each.source, base)
            if isinstance(found, Class) and found not in line:
                line.append(found)
    return line[1:]


def method(of: Class, name: str) -> Function | None:
    for each in (of, *above(of)):
        for node in each.node.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                return Function(each.source, node)
    return None


def methods_named(name: str) -> list[Function]:
    """Of all classes of the program."""
    return [
        Function(source, node)
        for source in sources_with(f"def {name}(")
        for node in source.methods[name]
    ]


def fields(of: Class) -> list[str]:
    """The fields of a dataclass or a named tuple, in the order of its arguments."""
    is_data = "dataclass" in decorators(of.node) or any(
        name_of(base) == "NamedTuple" for base in of.node.bases
    )
    lines = [*(line for base in above(of) for line in base.node.body), *of.node.body]
    return [
        line.target.id
        for line in lines
        if is_data and isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    ]


def is_property(function: ast.AST) -> bool:
    return bool(decorators(function) & {"property", "cached_property"})
