"""Does a program turn a floating-point number that it reads into a branch or a size?

Most programs print such numbers, for example the loss, so a read says nothing. The source does:
from the expression that reads, this follows the number through expressions, assigned names and
returned values to a condition, an integer or an index. It does not follow a number into the
functions that it is passed to, through generators, into objects of other files, or through
PyTorch's own code. The order of statements plays no role.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from types import CodeType, FrameType
from typing import NamedTuple

READS = {"item", "tolist", "cpu", "numpy", "to", "float", "double", "array", "asarray", "__float__"}
TO_INTEGERS = {"int", "bool", "ceil", "floor", "trunc"}
SIZES = {"arange", "range", "linspace", "logspace"}
OF_INTEGERS = {"argmax", "argmin", "argsort", "bool", "byte", "int", "long", "nonzero", "short"}
"""Methods of a tensor on the host, whose numbers then are those of integers."""
OF_FLOATS = {"double", "float", "half", "mean", "std", "var"}
ENDS = {"print", "format", "str", "repr", "len", "type", "isinstance", "hasattr", "id"}
# Unknown numbers are assumed to be finite.
ENDS |= {"isfinite", "isnan", "isinf"}
ENDING_ATTRIBUTES = {
    "shape",
    "size",
    "dtype",
    "device",
    "numel",
    "dim",
    "ndim",
    "is_cuda",
    "format",
}
FILLS = {"append", "add", "extend", "insert", "appendleft"}
OF_DICTIONARIES = {"get", "items", "pop", "values"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
DISPLAYS = (ast.Set, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)

ANYWHERE = object()
Key = object
"""Where a container has the number: an index, a key, or ANYWHERE. None: it is no container."""


class Held(NamedTuple):
    """What an expression has of the number."""

    integers: bool = False
    """Integers that were made of it on the host."""
    key: Key = None


Outcome = frozenset[Held] | None
"""What is returned to the caller, which decides; empty if the number is only shown. None: it
reaches a branch or a size."""
SHOWN: Outcome = frozenset()
End = tuple[int | None, int | None]


class Source:
    """A parsed file."""

    def __init__(self, tree: ast.Module) -> None:
        self._parents: dict[ast.AST, ast.AST] = {}
        self._calls: dict[End, ast.Call] = {}
        """By their ends: no two calls end with the same parenthesis."""
        self._into: dict[End, ast.Subscript] = {}
        """Assigned elements, by their ends."""
        self._loads: defaultdict[str, list[ast.expr]] = defaultdict(list)
        self._stored: defaultdict[ast.AST, set[str]] = defaultdict(set)
        """The names that each function binds."""
        self._outer: dict[tuple[ast.AST, str], ast.AST] = {}
        """The functions and modules of names that are global or nonlocal in a function."""
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self._parents[child] = node
            if isinstance(node, ast.Call):
                self._calls[node.end_lineno, node.end_col_offset] = node
        for node in self._parents:
            if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
                if isinstance(node.ctx, ast.Load):
                    self._loads[_text(node)].append(node)
                elif isinstance(node, ast.Subscript):
                    self._into[node.end_lineno, node.end_col_offset] = node
                elif isinstance(node, ast.Name):
                    self._stored[self._function(node)].add(node.id)
            elif isinstance(node, ast.arg):
                self._stored[self._function(node)].add(node.arg)
        for node in self._parents:
            if isinstance(node, ast.Global | ast.Nonlocal):
                inner = self._function(node)
                for name in node.names:
                    self._stored[inner].discard(name)
                    outer = tree if isinstance(node, ast.Global) else self._enclosing(inner, name)
                    self._outer[inner, name] = outer

    def use_of_read(self, end: End) -> Outcome:
        """Of the number that the call which ends there reads."""
        call = self._calls.get(end)
        if call is None:
            return self._follow_stored(self._into[end].value) if end in self._into else SHOWN
        name = _name(call.func)
        if name == "copy_" and isinstance(call.func, ast.Attribute):
            return self._follow_stored(call.func.value)
        if name in SIZES or name in TO_INTEGERS:
            return None
        return self._follow([(call, Held())]) if name in READS else SHOWN

    def use_of_returned(self, end: End, returned: frozenset[Held]) -> Outcome:
        """Of what the call which ends there returned."""
        call = self._calls.get(end)
        return SHOWN if call is None else self._follow([(call, each) for each in returned])

    def _follow_stored(self, tensor: ast.expr) -> Outcome:
        """Of numbers that were copied into a tensor on the host, or into a part of it."""
        while isinstance(tensor, ast.Subscript):
            tensor = tensor.value
        return self._follow(list(self._loads_of(tensor, Held())))

    def _function(self, node: ast.AST) -> ast.AST:
        while not isinstance(node, (*FUNCTIONS, ast.Module)):
            node = self._parents[node]
        return node

    def _enclosing(self, function: ast.AST, name: str) -> ast.AST:
        """The function around this one that binds the name."""
        while not isinstance(function, ast.Module):
            function = self._function(self._parents[function])
            if name in self._stored[function]:
                break
        return function

    def _is_seen(self, load: ast.AST, name: str, function: ast.AST) -> bool:
        """Is what this name loads the variable of that function?"""
        inner = self._function(load)
        while inner is not function:
            if isinstance(inner, ast.Module) or name in self._stored[inner]:
                return False
            inner = self._function(self._parents[inner])
        return True

    def _loads_of(self, target: ast.expr, held: Held) -> Iterator[tuple[ast.AST, Held]]:
        """The expressions that load what is stored in `target`."""
        if isinstance(target, ast.Tuple | ast.List):
            for index, element in enumerate(target.elts):
                if held.key in (None, ANYWHERE, index):
                    yield from self._loads_of(element, held._replace(key=None))
            return
        if isinstance(target, ast.Starred):
            yield from self._loads_of(target.value, held._replace(key=ANYWHERE))
            return
        root: ast.expr = target
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if not isinstance(root, ast.Name):
            return
        # An attribute is the object's, whose other methods see it.
        everywhere = isinstance(target, ast.Attribute)
        function = self._function(target)
        function = self._outer.get((function, root.id), function)
        for load in self._loads[_text(target)]:
            if everywhere or self._is_seen(load, root.id, function):
                yield load, held
        if isinstance(target, ast.Subscript):
            at = target.slice.value if isinstance(target.slice, ast.Constant) else ANYWHERE
            yield from self._loads_of(target.value, held._replace(key=at))

    def _follow(self, rest: list[tuple[ast.AST, Held]]) -> Outcome:
        returned: set[Held] = set()
        seen: set[tuple[ast.AST, Held]] = set()
        while rest:
            at = rest.pop()
            if at in seen:
                continue
            seen.add(at)
            if isinstance(self._parents[at[0]], ast.Return | ast.Lambda):
                returned.add(at[1])
            elif (further := self._step(*at)) is None:
                return None
            else:
                rest += further
        return frozenset(returned)

    def _step(self, node: ast.AST, held: Held) -> list[tuple[ast.AST, Held]] | None:
        """The expressions to go on with; None if the number decides here."""
        parent = self._parents[node]
        whole = [(parent, held)]
        element = held._replace(key=None)
        if isinstance(getattr(node, "ctx", None), ast.Store):
            return []
        match parent:
            case (
                ast.If(test=test)
                | ast.While(test=test)
                | ast.IfExp(test=test)
                | ast.Assert(test=test)
                | ast.match_case(guard=test)
            ) if test is node:
                return None if held.key is None else []
            case ast.comprehension(ifs=ifs) if node in ifs:
                return None if held.key is None else []
            case ast.UnaryOp(op=ast.Not()) | ast.BoolOp() if held.key is not None:
                return []
            case ast.BoolOp(values=values) if (
                isinstance(self._parents[parent], ast.Expr) and node is not values[-1]
            ):
                return None
            case ast.Match() | ast.Slice():
                return None
            case ast.Subscript(slice=index) if index is node:
                return None
            case ast.Subscript(slice=ast.Constant(value=key)):
                return [(parent, element)] if held.key in (None, ANYWHERE, key) else []
            case ast.Subscript(slice=ast.Slice()) | ast.Starred():
                return [(parent, _moved(held))]
            case ast.Subscript():
                return [(parent, element)]
            case ast.Assign(targets=targets):
                return [load for target in targets for load in self._loads_of(target, held)]
            case ast.AugAssign(target=target):
                return list(self._loads_of(target, _moved(held)))
            case ast.AnnAssign(target=target):
                return list(self._loads_of(target, held))
            case ast.NamedExpr(target=target):
                return [*whole, *self._loads_of(target, held)]
            case ast.For(iter=of, target=target) | ast.comprehension(iter=of, target=target):
                if of is not node:
                    return []
                return list(self._loads_of(_of_elements(of, target), element))
            case ast.Dict(keys=keys, values=values):
                of_value = (name for name, value in zip(keys, values, strict=True) if value is node)
                name = next(of_value, None)
                at = name.value if isinstance(name, ast.Constant) else ANYWHERE
                return [(parent, held._replace(key=at))]
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                place = next(i for i, each in enumerate(elements) if each is node)
                moved = any(isinstance(each, ast.Starred) for each in elements[: place + 1])
                return [(parent, held._replace(key=ANYWHERE if moved else place))]
            case _ if isinstance(parent, DISPLAYS):
                return [(parent, held._replace(key=ANYWHERE))]
            case ast.keyword(arg=name):
                call = self._parents[parent]
                if name and isinstance(call, ast.Call) and _name(call.func) == "update":
                    return self._updated(call, held._replace(key=name))
                return self._argument(call, held)
            case ast.Call(func=func) if func is not node:
                return self._argument(parent, held)
            case ast.Attribute(attr=name):
                if name in ENDING_ATTRIBUTES:
                    return []
                if held.integers and name in ("item", "tolist"):
                    return None
                call = self._parents[parent]
                if held.key is not None and name in ("get", "pop") and isinstance(call, ast.Call):
                    first = call.args[0] if call.args else None
                    if isinstance(first, ast.Constant) and held.key not in (ANYWHERE, first.value):
                        return []
                    return [(call, element)]
                integers = (held.integers or name in OF_INTEGERS) and name not in OF_FLOATS
                return [(parent, held._replace(integers=integers))]
            case ast.Compare(ops=ops) if any(isinstance(op, ast.Is | ast.IsNot) for op in ops):
                return []
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[of]) if of is node:
                return []
            case ast.Compare():
                return [(parent, Held(integers=True))]
            case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str()) | ast.JoinedStr()):
                return []
            case ast.BinOp():
                return [(parent, _moved(held))]
            case ast.JoinedStr() | ast.FormattedValue() | ast.stmt() | ast.withitem():
                return []
            case ast.expr():
                return whole
        return []

    def _argument(self, call: ast.AST, held: Held) -> list[tuple[ast.AST, Held]] | None:
        """What a call makes of its argument."""
        if not isinstance(call, ast.Call):
            return []
        name = _name(call.func)
        rounds = name == "round" and len(call.args) == 1 and not call.keywords
        if name in SIZES or name in TO_INTEGERS or rounds:
            return None
        if name in ENDS:
            return []
        if name in FILLS and isinstance(call.func, ast.Attribute):
            return list(self._loads_of(call.func.value, held._replace(key=ANYWHERE)))
        stored: list[tuple[ast.AST, Held]] = []
        if isinstance(call.func, ast.Attribute) and call.args:
            if name == "update" and held.key is not None:
                stored = self._updated(call, held)
            elif name == "setdefault":
                first = call.args[0]
                at = first.value if isinstance(first, ast.Constant) else ANYWHERE
                stored = self._updated(call, held._replace(key=at))
        return [(call, held._replace(key=None)), *stored]

    def _updated(self, call: ast.Call, held: Held) -> list[tuple[ast.AST, Held]]:
        """The loads of a dictionary that `call` stores into, but not of other objects' methods."""
        if not isinstance(call.func, ast.Attribute):
            return []
        loads = self._loads_of(call.func.value, held)
        parents = ((self._parents[load[0]], load) for load in loads)
        return [
            load
            for parent, load in parents
            if not isinstance(parent, ast.Attribute) or parent.attr in OF_DICTIONARIES
        ]


def _of_elements(of: ast.expr, target: ast.expr) -> ast.expr:
    """The part of a loop's target that is neither a number of `enumerate` nor a key of `items`."""
    while (
        isinstance(of, ast.Call)
        and (name := _name(of.func)) in ("enumerate", "items")
        and isinstance(target, ast.Tuple)
        and len(target.elts) == 2
    ):
        target = target.elts[1]
        if name == "items" or not of.args:
            break
        of = of.args[0]
    return target


def _moved(held: Held) -> Held:
    """In a container whose elements have other indices now."""
    return held._replace(key=ANYWHERE) if isinstance(held.key, int) else held


def _text(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ast.unparse(node)


def _name(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


@functools.lru_cache(maxsize=64)
def _source(file: str, text: str) -> Source | None:
    try:
        return Source(ast.parse(text, file))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _source_of(frame: FrameType) -> Source | None:
    file = frame.f_code.co_filename
    text = "".join(linecache.getlines(file, frame.f_globals))
    return _source(file, text) if text else None


_known: dict[tuple[str, CodeType, int, Outcome], Outcome] = {}
"""Equal code may be of different files."""


def _use_in(frame: FrameType, returned: Outcome) -> Outcome:
    """`returned`: what the call that the frame makes now returns; None: it reads the number."""
    key = (frame.f_code.co_filename, frame.f_code, frame.f_lasti, returned)
    if key not in _known:
        use = SHOWN
        if (source := _source_of(frame)) is not None:
            _, end_line, _, end_column = next(
                islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
            )
            end = (end_line, end_column)
            use = (
                source.use_of_read(end)
                if returned is None
                else source.use_of_returned(end, returned)
            )
        _known[key] = use
    return _known[key]


def decides(frame: FrameType) -> bool:
    """Does the number that the innermost call of `frame` reads reach a branch or a size?"""
    at: FrameType | None = frame
    use = None
    while at is not None:
        use = _use_in(at, use)
        if use is None or not use:
            return use is None
        at = at.f_back
    return False
