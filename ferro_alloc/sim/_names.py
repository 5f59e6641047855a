"""What names and expressions of a program stand for, as far as it is certain.

`_definitions` tells what they may stand for.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Hashable
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from ferro_alloc.sim._program import Program
from ferro_alloc.sim._sources import Source, decorators, is_of_program, name_of, source_of

NEW_ARRAYS = {"zeros", "ones", "empty", "full"}
NEW_CONTAINERS = {"collections.deque", "collections.defaultdict", "collections.OrderedDict"}
READS_CONTAINER = {
    "items",
    "values",
    "keys",
    "get",
    "pop",
    "clear",
    "sum",
    "mean",
    "copy",
    "tolist",
}
SHOWS_CONTAINER = {"print", "len", "sum", "min", "max", "str", "repr", "sorted", "any", "all"}
PLAIN_DECORATORS = {"no_grad", "inference_mode", "staticmethod"}
NUMBER, OWN, DEEP = "number", "own", "deep"
"""What a variable gets: only numbers; also containers that no other variable had when they were
assigned; or those whose containers are their own too."""


NONE: dict[str, Any] = {}


class Function(NamedTuple):
    source: Source
    node: ast.FunctionDef
    given: int = 0
    """The number of arguments that a bound method has already."""


class Names:
    """`source` is a file of the program, whose module has these variables, if it is none of the
    loaded ones."""

    def __init__(
        self, program: Program, source: Source | None = None, variables: dict[str, Any] = NONE
    ) -> None:
        self._program = program
        self._first = source
        self._globals = variables
        self._known: dict[Hashable, bool] = program.known_values
        """Whether all that a variable gets is such a value."""

    # Imports and builtins.

    def is_builtin(self, source: Source, name: ast.expr) -> bool:
        """Is it a function of Python?"""
        if not isinstance(name, ast.Name) or not hasattr(builtins, name.id):
            return False
        variables = source.variables
        return not (
            variables.has_star_import
            or variables.bindings[variables.of(name)]
            or self._variable(source, name.id) is not None
            or self._program.sets_variable(name.id)
        )

    def imported(self, source: Source, node: ast.expr) -> str:
        """What an expression stands for by an import, as in "numpy.mean"; empty if by none."""
        match node:
            case ast.Name():
                variables = source.variables
                bindings = variables.bindings[variables.of(node)]
                found = {_named(source, each) for each in bindings}
                return found.pop() if len(found) == 1 else ""
            case ast.Attribute(value=value, attr=name):
                if before := self.imported(source, value):
                    return f"{before}.{name}"
        return ""

    def is_foreign(self, module: str) -> bool:
        """Is it a loaded module that is none of the program's?"""
        found = sys.modules.get(module)
        file = getattr(found, "__file__", None)
        return found is not None and not (isinstance(file, str) and is_of_program(file))

    def _variable(self, source: Source, name: str) -> object:
        """What a module binds to a name now."""
        return self._globals.get(name) if source is self._first else source.variable(name)

    def is_made_by(self, source: Source, node: ast.expr, maker: str) -> bool:
        """Is it a variable that gets only results of this library function? A module, as in
        "torch.optim.", stands for all of its functions."""
        if not isinstance(node, ast.Name) or not self.is_foreign(maker.rpartition(".")[0]):
            return False
        variables = source.variables
        bindings = variables.bindings[variables.of(node)]
        for target in bindings:
            match source.parents[target]:
                case ast.Assign(value=ast.Call(func=function)) if isinstance(target, ast.Name):
                    made = self.imported(source, function)
                    if made == maker or (maker.endswith(".") and made.startswith(maker)):
                        continue
            return False
        return bool(bindings)

    # Values.

    def is_number(self, source: Source, node: ast.expr) -> bool:
        """Is it a number of Python?"""
        match node:
            case ast.Constant(value=value):
                return isinstance(value, int | float)
            case ast.UnaryOp(operand=of):
                return isinstance(node.op, ast.Not) or self.is_number(source, of)
            case ast.BinOp(left=one, right=other) | ast.IfExp(body=one, orelse=other):
                return self.is_number(source, one) and self.is_number(source, other)
            case ast.BoolOp(values=values):
                return all(self.is_number(source, each) for each in values)
            case ast.Call(func=ast.Name(id="len" | "int" | "float" | "bool"), args=[_]):
                return self.is_builtin(source, node.func)
            case ast.Call(func=ast.Name(id="round" | "abs"), args=[of, *_]):
                return self.is_builtin(source, node.func) and self.is_number(source, of)
            case ast.Call(func=ast.Attribute(attr="item" | "numel" | "dim" as name), args=[]):
                return not self._program.defines(name)
            case ast.Call(func=ast.Attribute(attr="size"), args=[_], keywords=[]):
                return not self._program.defines("size")
            case ast.Subscript(value=ast.Attribute(attr="shape"), slice=index):
                return not isinstance(index, ast.Slice) and not self._program.defines("shape")
            case ast.Name():
                return self.gets_only(source, node, NUMBER)
        return False

    def is_positive(self, source: Source, node: ast.expr) -> bool:
        """Is it `max(number, 1)`?"""
        match node:
            case ast.Call(func=ast.Name(id="max") as function, args=[_, _] as args, keywords=[]):
                return self.is_builtin(source, function) and any(
                    isinstance(each, ast.Constant)
                    and isinstance(each.value, int | float)
                    and each.value > 0
                    for each in args
                )
        return False

    def is_tested(self, source: Source, node: ast.expr) -> bool:
        """Is it the `n` of `1 / n if n > 0 else 0`?"""
        parent = source.parents[node]
        user = source.parents[parent]
        if not isinstance(node, ast.Name) or not isinstance(user, ast.IfExp):
            return False
        match user.test:
            case ast.Name(id=name):
                pass
            case ast.Compare(
                left=ast.Name(id=name),
                ops=[ast.Gt() | ast.NotEq()],
                comparators=[ast.Constant(value=0)],
            ):
                pass
            case _:
                return False
        return name == node.id and user.body is parent

    def gets_only(self, source: Source, name: ast.Name, what: str) -> bool:
        """Does a variable of a function or of the main file get only such values?"""
        variables = source.variables
        scope, text = variables.of(name)
        if isinstance(scope, ast.Module):
            if not self._program.is_main(source):
                return False
        elif not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        key = (what, source, scope, text)
        if key not in self._known:
            before = len(self._known)
            self._known[key] = True  # as far as it depends on itself
            bindings = variables.bindings[scope, text]
            loads = variables.loads[scope, text] if what == DEEP else []
            if (
                not bindings
                or not all(self.gets(source, each, what) for each in bindings)
                or not all(self.keeps_own(source, each) for each in loads)
            ):
                while len(self._known) > before:
                    self._known.popitem()  # the later ones may depend on it
                self._known[key] = False
        return self._known[key]

    def gets(self, source: Source, target: ast.AST, what: str) -> bool:
        """Does the target of an assignment get such a value?"""
        place: list[int] = []
        at, parent = target, source.parents[target]
        while isinstance(parent, ast.Tuple | ast.List):
            place.insert(0, parent.elts.index(at))  # type: ignore[arg-type]
            at, parent = parent, source.parents[parent]
        is_shared = False
        match parent:
            case ast.AugAssign(value=value):
                if what == DEEP:
                    return self._is_own(source, value, True)
                return what == OWN or self.is_number(source, value)
            case ast.AnnAssign(value=None):
                return True
            case ast.Assign(targets=targets, value=value):
                is_shared = len(targets) > 1
            case ast.AnnAssign(value=ast.expr() as value):
                pass
            case ast.NamedExpr(value=value):
                is_shared = True
            case _:
                return False
        for index in place:
            elements = getattr(value, "elts", [])
            if any(isinstance(each, ast.Starred) for each in elements[: index + 1]):
                return False
            if index >= len(elements):
                return False
            value = elements[index]
        if what == NUMBER or is_shared:
            return self.is_number(source, value)
        return self._is_own(source, value, what == DEEP)

    def keeps_own(self, source: Source, load: ast.expr) -> bool:
        """Does this use of a container store nothing in it that others have? A use that gives the
        container to others may."""
        user = source.parents[load]
        after = source.parents[user]
        match user:
            case ast.Subscript(ctx=ast.Store()):
                match after:
                    case ast.AugAssign():
                        return True
                    case ast.Assign(targets=[target], value=value) if target is user:
                        return self._is_own(source, value, True)
                return False
            case ast.Subscript():
                return True
            case ast.Attribute(attr=name) if isinstance(after, ast.Call) and after.func is user:
                values = [*after.args, *(each.value for each in after.keywords)]
                return name in READS_CONTAINER or (
                    name in ("append", "extend", "update")
                    and all(self._is_own(source, each, True) for each in values)
                )
            case ast.Attribute(attr="shape" | "dtype" | "ndim"):
                return True
            case ast.Call(func=ast.Name(id=name) as function) if name in SHOWS_CONTAINER:
                return self.is_builtin(source, function)
            case ast.For(iter=of) | ast.comprehension(iter=of):
                return of is load
            case ast.FormattedValue(value=of):
                return of is load
        return False

    def _is_own(self, source: Source, node: ast.expr, deep: bool) -> bool:
        match node:
            case ast.Constant() | ast.JoinedStr():
                return True
            case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Dict(values=elements):
                return not deep or all(self._is_own(source, each, True) for each in elements)
            case ast.ListComp(elt=element) | ast.DictComp(value=element):
                return not deep or self._is_own(source, element, True)
            case ast.BinOp(op=ast.Mult(), left=ast.List(elts=elements)):
                return all(isinstance(each, ast.Constant) for each in elements)
            case ast.Call(func=function, args=args, keywords=keywords):
                name = name_of(function)
                if name in ("list", "dict") and self.is_builtin(source, function):
                    return not args and not keywords
                made = self.imported(source, function)
                if made in NEW_CONTAINERS:
                    return all(self.is_builtin(source, each) for each in args)
                types = [*args[1:], *(each.value for each in keywords)]
                if made.startswith("numpy.") and not all(
                    self.imported(source, each).startswith("numpy.")
                    or self.is_builtin(source, each)
                    for each in types
                ):
                    return False  # its elements may have names
                if made in {f"{of}.{new}" for of in ("numpy", "torch") for new in NEW_ARRAYS}:
                    return True
        return self.is_number(source, node)

    # Functions and classes of the program.

    def function(self, source: Source, called: ast.expr) -> Function | None:
        """The function or method that an expression stands for."""
        variables = source.variables
        match called:
            case ast.Name():
                match variables.bindings[variables.of(called)]:
                    case [ast.FunctionDef() as node] if not self._program.replaces(node.name):
                        return Function(source, node)
                    case [ast.alias()]:
                        return self._function_of(self._variable(source, called.id))
            case ast.Attribute(value=ast.Name() as value, attr=name):
                match variables.bindings[variables.of(value)]:
                    case [ast.alias()]:
                        module = self._variable(source, value.id)
                        is_module = isinstance(module, ModuleType)
                        return self._function_of(module.__dict__.get(name)) if is_module else None
                of = self.class_of_self(source, value) or self._class_of_object(source, value)
                if of is not None:
                    return self._method(source, of, name)
        return None

    def _function_of(self, value: object) -> Function | None:
        """Of a function that a module of the program has."""
        if not isinstance(value, FunctionType):
            return None
        module = sys.modules.get(value.__module__)
        file = getattr(module, "__file__", None)
        name = value.__qualname__
        if module is None or not isinstance(file, str) or not is_of_program(file):
            return None
        source = source_of(file, module.__dict__)
        if source is None or module.__dict__.get(name) is not value:
            return None
        match source.variables.bindings[source.tree, name]:
            case [ast.FunctionDef() as node] if not self._program.replaces(name):
                return Function(source, node)
        return None

    def _method(self, source: Source, of: ast.ClassDef, name: str) -> Function | None:
        """The method of this name, if it is the only one of the program, and its class has it."""
        if of.keywords or of.decorator_list or self._program.replaces(name):
            return None
        found = [
            node
            for each in self._program.sources(name)
            for node in (each.variables.named[name] if each is not None else [None])
        ]
        match found:
            case [ast.FunctionDef() as node] if source.parents.get(node) is of:
                return Function(source, node, 0 if "staticmethod" in decorators(node) else 1)
        return None

    def class_of_self(self, source: Source, node: ast.expr) -> ast.ClassDef | None:
        """Of the first parameter of a method."""
        if not isinstance(node, ast.Name):
            return None
        variables = source.variables
        method, name = variables.of(node)
        match variables.bindings[method, name]:
            case [ast.arg()] if source.self_of(method) == name:
                if not decorators(method) - PLAIN_DECORATORS - {"property"}:
                    return source.class_of(method)
        return None

    def _class_of_object(self, source: Source, node: ast.Name) -> ast.ClassDef | None:
        """Of a variable that gets only objects of one class of this file."""
        variables = source.variables
        found: set[ast.AST] = set()
        for target in variables.bindings[variables.of(node)]:
            match source.parents[target]:
                case ast.Assign(value=ast.Call(func=ast.Name() as made)):
                    bindings = variables.bindings[variables.of(made)]
                    if len(bindings) == 1:
                        found.add(bindings[0])
                        continue
            return None
        match [*found]:
            case [ast.ClassDef() as of] if not self._program.defines("__new__"):
                return of
        return None

    def is_property(self, source: Source, function: ast.AST) -> bool:
        """Is it the only function of a property?"""
        of = source.class_of(function)
        match function:
            case ast.FunctionDef(decorator_list=[ast.Name(id="property") as name]) if of:
                return self.is_builtin(source, name) and not any(
                    each is not function and getattr(each, "name", "") == function.name
                    for each in of.body
                )
        return False

    def is_plain(self, function: ast.AST) -> bool:
        """Does a call of this function run it as it is?"""
        return (
            isinstance(function, ast.FunctionDef)
            and decorators(function) <= PLAIN_DECORATORS
            and all(
                isinstance(each, ast.Name | ast.Attribute | ast.Call)
                for each in function.decorator_list
            )
            and not any(map(self._program.defines, PLAIN_DECORATORS))
        )


def _named(source: Source, node: ast.AST) -> str:
    """The full name of what an import binds; empty for others."""
    statement = source.parents[node]
    match node:
        case ast.alias(name=name, asname=asname) if isinstance(statement, ast.Import):
            return name if asname else name.partition(".")[0]
        case ast.alias(name=name) if isinstance(statement, ast.ImportFrom) and not statement.level:
            return f"{statement.module}.{name}"
    return ""
