"""Does an integer or a boolean that a program reads reach nothing but places that show it?

An integer may become a size anywhere, so each of its uses must be known to be harmless. It may be
printed, logged, saved, added up and averaged; be stored in variables, and in containers and objects
that only the program has; be returned to calls that are all known; and be passed to functions of
the program. All else, and all that this module does not understand, may decide. `_follow` does the
opposite for floating-point numbers.

The order of statements plays no role: all loads of a variable count.
"""

from __future__ import annotations

import ast
import dis
import re
from collections.abc import Iterable, Iterator
from functools import cache
from heapq import merge
from operator import itemgetter
from types import CodeType, FrameType
from typing import NamedTuple

from ferro_alloc.sim._branches import LOGS, SAVES, Branches, prints, shows
from ferro_alloc.sim._names import DEEP, OWN, Function, Names
from ferro_alloc.sim._program import Program, program_around
from ferro_alloc.sim._selections import selects_one
from ferro_alloc.sim._sources import (
    Position,
    Source,
    is_of_program,
    name_of,
    number_of,
    position_of,
    positional,
    search_lock,
    source_of,
    text_in,
    text_of,
    without_collection,
)
from ferro_alloc.sim._uses import Uses
from ferro_alloc.sim._variables import Variable

READS = {"item", "tolist", "cpu", "numpy"}
"""Methods of tensors whose result is what was read."""
CONVERSIONS = {"int", "float", "bool"}
CALLS = ("CALL", "PRECALL")
"""Instructions. The first one may do the work of both once it has run often."""
# Methods of tensors on the host, arrays and numbers. No value changes the size of the result, nor
# raises an exception.
ARRAY_METHODS = {"item", "tolist", "numpy", "cpu", "float", "double", "long", "int", "bool"}
ARRAY_METHODS |= {"detach", "clone", "copy", "contiguous", "view", "reshape", "permute", "t"}
ARRAY_METHODS |= {"transpose", "flatten", "squeeze", "unsqueeze", "ravel", "astype", "round", "abs"}
ARRAY_METHODS |= {"sum", "mean", "std", "var", "max", "min", "argmax", "argmin", "all", "any"}
OPTIONS = {"dim", "keepdim", "axis", "keepdims", "dtype", "unbiased", "decimals"}
"""Their keywords. Others, such as `out`, may store the result."""
COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
SHAPE_METHODS = {"size", "numel", "dim", "stride", "element_size"}
SHAPES = {"shape", "dtype", "device", "ndim", "nbytes"}
VIEWS = {"T", "mT", "values", "indices"}
FILLS = {"append", "extend", "update"}
CHANGES = FILLS | {"insert", "clear"}
ARRAY_FUNCTIONS = {
    "numpy": {"mean", "sum", "std", "median", "array", "concatenate", "stack", "vstack", "hstack"},
    "torch": {"cat", "stack"},
    "statistics": {"mean", "fmean"},
    "math": {"floor", "ceil"},
}
"""The same of functions and their first arguments."""
BAD_FORMAT = re.compile(r"%[^a-zA-Z%]*[c*]|:[^{}]*c\}|\{[^{}]*\{(?!\{)")
"""Some numbers do not fit it, or its width is a number."""
MISSING = {"NameError", "UnboundLocalError", "AttributeError", "Exception", "BaseException"}
"""Exceptions of variables and attributes that do not exist."""
MAX_PARTS = 20_000
EXACT_PARTS = 50_000
"""Up to so many, each read is searched for alone. Later searches of the same program end where an
earlier one has been."""
MAX_KEYS = 4
ANYWHERE = object()
Key = object


class HarmfulError(Exception):
    """The number reaches something that is not known to be harmless."""


class Held(NamedTuple):
    """Where an expression has the number."""

    path: tuple[Key, ...] = ()
    """Indices of tuples and keys that are texts, from the outermost container on, or ANYWHERE.
    Empty: the expression is the number, or has it anywhere."""
    loose: bool = False
    """Its length, or which objects it has, may depend on the number too, as of a text."""
    is_object: bool = False
    """At the path is no number, but an object of the program with the number in an attribute."""

    def inside(self, *keys: Key) -> Held:
        return self._replace(path=(*keys, *self.path)[:MAX_KEYS])

    def element(self) -> Held:
        """Of a container of known length."""
        return self.fixed()._replace(path=self.path[1:])

    def moved(self) -> Held:
        """In a container whose elements have other indices."""
        return self._replace(path=(ANYWHERE, *self.path[1:])) if self.path else self

    def number(self) -> Held:
        """Made of numbers alone, without a known place."""
        if self.is_object:
            raise HarmfulError
        return Held((), self.loose)

    def fixed(self) -> Held:
        if self.loose or (self.is_object and not self.path):
            raise HarmfulError
        return self

    def is_at(self, key: Key) -> bool:
        return not self.path or self.path[0] in (ANYWHERE, key)

    @property
    def is_dictionary(self) -> bool:
        """Is it a dictionary for sure? Its keys are not the number."""
        return bool(self.path) and isinstance(self.path[0], str)


LOOSE = Held((), True)
OBJECT = Held((), False, True)
Part = tuple[Source, ast.AST, Held]

_known: dict[tuple[str, str, int, int, bool], bool] = {}


def is_harmless(frame: FrameType, as_text: bool = False) -> bool:
    """Does the number which the innermost call of `frame` reads only reach harmless places?
    `as_text`: the call, or a library for an outer one, makes a text of it.

    No failure reaches the program.
    """
    try:
        while as_text and not is_of_program(frame.f_code.co_filename):
            frame = frame.f_back  # type: ignore[assignment]
        code = frame.f_code
        if not as_text and selects_one(frame, _operation(code, frame.f_lasti)):
            return True
        module = str(frame.f_globals.get("__name__"))
        key = (code.co_filename, module, number_of(code), frame.f_lasti, as_text)
        if key not in _known:
            with search_lock:
                _known[key] = _is_harmless(frame, as_text)
        return _known[key]
    except Exception:
        return False


def are_shown(source: Source, targets: list[ast.expr], program: Program) -> bool:
    """Do these variables only reach harmless places, whatever of several values they get?"""
    search = _Search(program, Names(program))
    try:
        search.run_from_targets(source, targets)
    except (HarmfulError, RecursionError):
        return False
    return True


def is_shown(source: Source, node: ast.expr, program: Program) -> bool:
    """Does the number of this expression only reach harmless places?"""
    search = _Search(program, Names(program))
    try:
        search.run(source, node, Held())
    except (HarmfulError, RecursionError):
        return False
    return True


def _is_harmless(frame: FrameType, as_text: bool) -> bool:
    code = frame.f_code
    source = source_of(code.co_filename, frame.f_globals)
    if source is None or not source.is_of_program:
        return False
    if number_of(code) not in _codes_of(source, text_in(code.co_filename, frame.f_globals)):
        return False
    if source.module != frame.f_globals.get("__name__"):
        return False  # two modules have this file
    program = program_around(frame)
    if program.reflects:
        return False
    position = position_of(frame)
    names = Names(program, source, frame.f_globals)
    operation = _operation(code, frame.f_lasti)
    search = _Search(program, names)
    try:
        if as_text and (call := _call_at(source, position, operation)) is not None:
            search.run_from_arguments(source, call)
            return True
        read = _text if as_text else _read
        found = read(names, source, position, operation)
        if found is not None:
            search.run(source, *found)
    except (HarmfulError, RecursionError):
        return False
    return found is not None


@cache
def _codes_of(source: Source, text: str) -> frozenset[int]:
    """The code of a file and of its functions."""
    with without_collection():
        found = [compile(text, source.file, "exec", dont_inherit=True)]
        for each in found:
            found += [one for one in each.co_consts if isinstance(one, CodeType)]
        return frozenset(map(number_of, found))


def _operation(code: CodeType, at: int) -> str:
    """The name of the instruction; that of a call of a Python function may be behind its caches."""
    while dis.opname[code.co_code[at]] == "CACHE":
        at -= 2
    return dis.opname[code.co_code[at]]


def _read(
    names: Names, source: Source, position: Position, operation: str
) -> tuple[ast.AST, Held] | None:
    """What has the number which the instruction of this position reads; None if unknown."""
    if operation.startswith(CALLS):
        match call := source.at(position):
            case ast.Call(func=ast.Attribute(attr=name), args=[], keywords=[]) if name in READS:
                return call, Held()
            case ast.Call(func=ast.Attribute(attr="to"), args=[ast.Constant("cpu")]):
                return call, Held()
            case ast.Call(func=function, args=[_], keywords=[]) if name_of(
                function
            ) in CONVERSIONS and names.is_builtin(source, function):
                return call, Held()
    match node := source.spanning(position):
        case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str(text))):
            if operation == "BINARY_OP" and not BAD_FORMAT.search(text):
                return node, LOOSE
    return None


def _call_at(source: Source, position: Position, operation: str) -> ast.Call | None:
    call = source.at(position) if operation.startswith(CALLS) else None
    return call if isinstance(call, ast.Call) else None


def _text(
    names: Names, source: Source, position: Position, operation: str
) -> tuple[ast.AST, Held] | None:
    """The text that the instruction of this position makes; None if unknown."""
    match node := source.spanning(position):
        case ast.JoinedStr() | ast.FormattedValue() if operation.startswith("FORMAT"):
            specs = [
                each.format_spec for each in ast.walk(node) if isinstance(each, ast.FormattedValue)
            ]
            if not any(map(_may_not_fit, filter(None, specs))):
                return node, LOOSE
        case ast.expr() if operation.startswith("FORMAT"):
            # Python makes an f-string of `"%s %s" % (a, b)`.
            values = source.parents[node]
            match made := source.parents.get(values):
                case ast.BinOp(op=ast.Mod(), right=right) if right is values:
                    return made, LOOSE
    return _read(names, source, position, operation)


class _Search:
    """Follows the number through all files."""

    def __init__(self, program: Program, names: Names) -> None:
        self._program = program
        self._names = names
        self._branches = Branches(program, names)
        self._rest: list[Part] = []
        self._seen: set[Part] = set()
        self._branches_left: list[tuple[Part, ast.If | ast.IfExp]] = []
        """To look at when all that gets the number is known."""
        self._decides_on: set[ast.AST] = set()
        """Statements `if`, these and earlier ones. What is within one of them is a part of that."""
        self._held: set[ast.AST] = set()
        """Targets and parameters that get the number."""
        self._came_from: dict[Part | None, Part | None] = {}
        self._at: Part | None = None
        """The part that is looked at."""
        self._done: set[tuple[object, ...]] = set()
        """Variables, attributes, classes and functions whose uses were added already: many places
        may store the number in one."""

    def _is_new(self, *of: object) -> bool:
        is_new = of not in self._done
        self._done.add(of)
        return is_new and not (self._is_long and of in self._program.earlier.done)

    def run(self, source: Source, node: ast.AST, held: Held) -> None:
        self._add(source, node, held)
        self._go_on()

    def run_from_arguments(self, source: Source, call: ast.Call) -> None:
        """The call makes a text of one of its arguments."""
        for argument in (*call.args, *call.keywords):
            self._argument(source, call, argument, LOOSE)
        self._go_on()

    def run_from_targets(self, source: Source, targets: list[ast.expr]) -> None:
        for target in targets:
            self._store_choice(source, target)
        self._go_on()

    def _store_choice(self, source: Source, target: ast.expr) -> None:
        """A branch decides what the target gets."""
        self._check_missing(source, target)
        if isinstance(source.parents[target], ast.AugAssign):
            self._fill(source, target, LOOSE, OWN)
        else:
            self._store(source, target, LOOSE)

    def _check_missing(self, source: Source, target: ast.expr) -> None:
        """Checks that no handler tells whether the branch made the variable or the attribute."""
        nodes: list[tuple[Source, ast.AST]] = []
        if isinstance(target, ast.Attribute):
            if self._is_new("missing", target.attr):
                nodes += self._attributes(target.attr)
        elif isinstance(target, ast.Name):
            variables = source.variables
            of = variables.of(target)
            if not self._is_new("missing", of):
                return
            nodes += [(source, each) for each in (*variables.bindings[of], *variables.loads[of])]
        loads = [(each, node) for each, node in nodes if not _is_stored(node)]
        if all(_is_in_branch(each, node) for each, node in nodes if _is_stored(node)):
            _check(not any(_is_tried(each, node) for each, node in loads))

    def _go_on(self) -> None:
        earlier = self._program.earlier
        try:
            while self._rest or self._branches_left:
                if self._rest:
                    part = self._rest.pop()
                    self._at = part
                    if not self._is_known(part):
                        self._step(*part)
                else:
                    part, branch = self._branches_left.pop()
                    self._at = part
                    if part[0].parents[branch] not in self._decides_on:
                        self._branch(part[0], branch)
        except HarmfulError:
            at = self._at
            while at is not None:
                earlier.harmful.add(at)
                at = self._came_from[at]
            raise
        finally:
            earlier.count += len(self._seen)
        earlier.harmless |= self._seen
        earlier.done |= self._done
        earlier.held |= self._held

    @property
    def _is_long(self) -> bool:
        """Does it count what earlier searches have found?"""
        return self._program.earlier.count >= EXACT_PARTS

    def _is_known(self, part: Part) -> bool:
        """Has an earlier search gone on from there, to harmless places only?"""
        if not self._is_long:
            return False
        _check(part not in self._program.earlier.harmful)
        return part in self._program.earlier.harmless

    def _is_held(self, binding: ast.AST) -> bool:
        return binding in self._held or (self._is_long and binding in self._program.earlier.held)

    def _add(self, source: Source, node: ast.AST, held: Held) -> None:
        part = (source, node, held)
        if part not in self._seen:
            _check(len(self._seen) < MAX_PARTS)
            self._seen.add(part)
            self._came_from[part] = self._at
            self._rest.append(part)

    def _step(self, source: Source, node: ast.AST, held: Held) -> None:
        """Follows the number from an expression to what uses it."""
        parent = self._parent(source, node)

        def go_on(held: Held) -> None:
            self._add(source, parent, held)

        match parent:
            case ast.Expr():
                pass
            case ast.Assign(targets=targets):
                for target in targets:
                    self._store(source, target, held)
            case ast.AnnAssign(target=target, value=value) if value is node:
                self._store(source, target, held)
            case ast.NamedExpr(target=target):
                self._store(source, target, held)
                go_on(held)
            case ast.AugAssign(target=target, op=op, value=value):
                made = self._operate(source, op, held, target, value, node is target)
                if isinstance(target, ast.Subscript):
                    self._fill(source, target.value, made.inside(_key(target.slice)), DEEP)
                else:
                    self._fill(source, target, made, OWN)
            case ast.BinOp(op=op, left=left, right=right):
                go_on(self._operate(source, op, held, left, right, node is left))
            case ast.UnaryOp():
                go_on(held.number())
            case ast.Compare(ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(None)]):
                _check(not held.loose)
            case ast.Compare(ops=[ast.In() | ast.NotIn()], left=left) if held.is_dictionary:
                _check(left is not node)
            case ast.Compare(left=left, ops=[_], comparators=[right]):
                self._check_operand(source, right if node is left else left)
                go_on(held.number())
            case ast.If(test=test) if test is node:
                _check(not held.is_object)
                self._branches_left.append(((source, node, held), parent))
                self._decides_on.add(parent)
            case ast.BoolOp(values=values) if source.is_condition(parent):
                after = values[_place(node, values) + 1 :]
                _check(all(self._branches.is_simple(source, each) for each in after))
                go_on(held.number())
            case ast.IfExp(test=test) if test is not node:
                go_on(held)
            case ast.IfExp() if not isinstance(node, ast.Call):
                _check(not held.is_object)
                self._branches_left.append(((source, node, held), parent))
            case ast.BoolOp(values=[*_, last]) if last is node:
                go_on(held)
            case ast.Tuple(elts=elements, ctx=ast.Load()):
                before = elements[: _place(node, elements) + 1]
                moved = any(isinstance(each, ast.Starred) for each in before)
                go_on(held.inside(ANYWHERE if moved else len(before) - 1))
            case ast.List(ctx=ast.Load()):
                go_on(held.inside(ANYWHERE))
            case ast.Set():
                go_on(held.number()._replace(loose=True))
            case ast.Starred(ctx=ast.Load()):
                go_on(held.element())
            case ast.Dict(keys=keys, values=values) if node in values:
                key = keys[_place(node, values)]
                go_on(held.fixed() if key is None else held.inside(_key(key)))
            case ast.FormattedValue(value=value, format_spec=spec) if value is node:
                _check(spec is None or not _may_not_fit(spec))
                go_on(LOOSE)
            case ast.JoinedStr():
                go_on(LOOSE)
            case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element) if element is node:
                go_on(held.inside(ANYWHERE))
            case ast.SetComp(elt=element) if element is node:
                go_on(held.number()._replace(loose=True))
            case ast.DictComp(value=value) if value is node:
                go_on(held.inside(ANYWHERE))
            case ast.For(iter=of, target=target) | ast.comprehension(iter=of, target=target) if (
                of is node and not getattr(parent, "is_async", 0)
            ):
                if not held.is_dictionary:
                    self._store(source, target, held.element())
            case ast.Subscript(value=value) if value is node:
                self._subscript(source, parent, held)
            case ast.Attribute():
                self._attribute(source, parent, held)
            case ast.keyword():
                self._argument(source, self._parent(source, parent), parent, held)
            case ast.Call(func=function) if function is not node:
                self._argument(source, parent, node, held)
            case ast.Return():
                self._return(source, source.function(node), held)
            case _:
                raise HarmfulError

    def _parent(self, source: Source, node: ast.AST) -> ast.AST:
        return source.parents[node]

    def _branch(self, source: Source, branch: ast.If | ast.IfExp) -> None:
        """Follows what a branch assigns or gives, which the number decides on."""
        if isinstance(branch, ast.IfExp):
            _check(self._branches.chooses_host(source, branch, self._is_held))
            self._add(source, branch, LOOSE)
            return
        targets = self._branches.assigned(source, branch, self._is_held)
        if targets is None:
            raise HarmfulError
        for target in targets:
            self._store_choice(source, target)

    # What operators do.

    def _operate(
        self,
        source: Source,
        op: ast.operator,
        held: Held,
        left: ast.expr,
        right: ast.expr,
        is_left: bool,
    ) -> Held:
        """What `left op right` has of the number that one of them has."""
        other = right if is_left else left
        _check(not held.is_object)
        if isinstance(op, ast.Mod) and not is_left:
            match left:
                case ast.Constant(value=str(text)) if not BAD_FORMAT.search(text):
                    return LOOSE
        self._check_operand(source, other)
        match op:
            case ast.Add() | ast.Sub() | ast.BitAnd() | ast.BitOr() | ast.BitXor():
                return held.moved()
            case ast.Mult():
                return held.moved() if self._names.is_number(source, other) else LOOSE
            case ast.Div() | ast.FloorDiv() if (
                is_left
                or self._names.is_positive(source, right)
                or self._names.is_tested(source, right)
            ):
                return held.moved()
            case ast.Mod() if is_left:
                return held.fixed().moved()
            case ast.Pow() if is_left and isinstance(right, ast.Constant) and right.value == 2:
                return held.moved()
        raise HarmfulError

    def _check_operand(self, source: Source, other: ast.expr) -> None:
        """Checks that no special method of the program gets the number."""
        is_plain = isinstance(other, ast.Constant | ast.JoinedStr)
        if self._program.has_operators and not is_plain:
            _check(self._names.is_number(source, other))

    # Where it is stored.

    def _store(self, source: Source, target: ast.AST, held: Held) -> None:
        match target:
            case ast.Name():
                if not (held.path or held.is_object):
                    self._held.add(target)
                self._hold(source, *source.variables.of(target), held)
            case ast.Attribute():
                self._hold_attribute(source, target, held)
            case ast.Subscript(value=value, slice=index):
                self._fill(source, value, held.inside(_key(index)), OWN)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                moved = False
                for place, each in enumerate(elements):
                    if isinstance(each, ast.Starred):
                        moved = True
                        self._store(source, each.value, held.fixed().moved())
                    elif moved or held.is_at(place):
                        self._store(source, each, held.element())
            case _:
                raise HarmfulError

    def _fill(self, source: Source, of: ast.expr, held: Held, what: str) -> None:
        """Stores it in an object, which no other variable may have: that of a variable or an
        attribute (OWN), or an object within that one (DEEP), but not further within. `held` is what
        the object then has."""
        if isinstance(of, ast.Subscript):
            _check(what != DEEP)
            held, what = held.inside(_key(of.slice)), DEEP
            of = of.value
        match of:
            case ast.Name():
                _check(self._names.gets_only(source, of, what))
                self._hold(source, *source.variables.of(of), held)
            case ast.Attribute():
                self._hold_attribute(source, of, held, what)
            case _:
                raise HarmfulError

    def _hold(self, source: Source, scope: ast.AST, name: str, held: Held) -> None:
        """Follows all loads of a variable."""
        _check(not isinstance(scope, ast.ClassDef) and not name.startswith("__"))
        # Other modules may load variables of one that they import.
        _check(not isinstance(scope, ast.Module) or self._program.is_main(source))
        if not self._is_new(scope, name, held):
            return
        variables = source.variables
        for load in self._loads(source, (scope, name), held):
            self._add(source, load, held)
        for target in variables.bindings[scope, name]:
            if isinstance(source.parents[target], ast.AugAssign):
                self._add(source, target, held)

    def _loads(self, source: Source, of: Variable, held: Held) -> Iterable[ast.AST]:
        """The loads of a variable, but for those that only take other elements."""
        loads = source.variables.loads[of]
        if held.loose or not held.is_dictionary:
            return loads
        uses = self._program.uses
        if (source, of) not in uses:
            uses[source, of] = Uses(source, enumerate(loads))
        of_key = uses[source, of].taken.get(held.path[0], ())
        return (load for _, load in merge(uses[source, of].others, of_key, key=itemgetter(0)))

    def _hold_attribute(
        self, source: Source, target: ast.Attribute, held: Held, what: str = ""
    ) -> None:
        """Follows all loads of attributes of this name, in all files."""
        of = self._names.class_of_self(source, target.value)
        if of is None:
            raise HarmfulError
        name = target.attr
        if not self._is_new(of, name, held, what):
            return
        _check(not name.startswith("__") and not self._program.reaches_attribute(name))
        _check(not source.variables.bindings[of, name])  # it may be a descriptor
        self._check_class(source, of)
        for each, node in self._attributes(name):
            is_changed = isinstance(each.parents[node], ast.AugAssign)
            if isinstance(node.ctx, ast.Store) and what:
                _check(self._names.gets(each, node, what))
            elif what == DEEP:
                _check(self._names.keeps_own(each, node))
            call = each.parents[node]
            if isinstance(call, ast.Call) and call.func is node and not held.is_object:
                continue  # a method of this name: no number can be called
            if isinstance(node.ctx, ast.Load) or is_changed:
                self._add(each, node, held)

    def _check_class(self, source: Source, of: ast.ClassDef) -> None:
        """Checks that no library gets an object of the class, whose attributes it might load."""
        if not self._is_new(of):
            return
        _check(not of.bases and not of.keywords and not of.decorator_list)
        _check(not self._program.has_class_of(of.name))
        _check(isinstance(source.variables.scope(of), ast.Module | ast.FunctionDef))
        self._follow_definition(source, of, OBJECT)
        for line in of.body:
            if (first := source.self_of(line)) is not None:
                self._hold(source, line, first, OBJECT)

    def _attributes(self, name: str) -> Iterator[tuple[Source, ast.Attribute]]:
        for source in self._program.sources(name):
            if source is None:
                raise HarmfulError
            for node in source.all_attributes[name]:
                yield source, node

    # What becomes of an object that has it.

    def _subscript(self, source: Source, node: ast.Subscript, held: Held) -> None:
        element = held.element()
        parent = source.parents[node]
        match node.ctx, node.slice:
            case ast.Store(), _ if isinstance(parent, ast.AugAssign):
                made = self._operate(source, parent.op, element, node, parent.value, True)
                _check(not made.loose)
            case ast.Load(), ast.Constant(value=key):
                if held.is_at(key):
                    self._add(source, node, element)
            case ast.Load(), ast.Slice():
                self._add(source, node, held.moved())
            case ast.Load(), ast.Tuple():
                self._add(source, node, held.number())
            case ast.Load(), _:
                self._add(source, node, element)

    def _attribute(self, source: Source, node: ast.Attribute, held: Held) -> None:
        if held.is_object and not held.path:
            return  # loads of the attribute are followed by its name
        name, call = node.attr, source.parents[node]
        _check(isinstance(node.ctx, ast.Load) and not self._program.defines(name))
        held.fixed()
        if not isinstance(call, ast.Call) or call.func is not node:
            if name in VIEWS:
                self._add(source, node, held.number())
            else:
                _check(name in SHAPES)
            return
        first = call.args[0] if call.args else None
        match name:
            case "items":
                self._add(source, call, held.element().inside(ANYWHERE, 1))
            case "values":
                self._add(source, call, held.moved())
            case "keys":
                _check(held.is_dictionary)
            case "get" | "pop":
                if not isinstance(first, ast.Constant) or held.is_at(_key(first)):
                    self._add(source, call, held.element())
            case _ if name in ARRAY_METHODS and {each.arg for each in call.keywords} <= OPTIONS:
                self._add(source, call, held.number())
            case _ if name in COMPARISONS and len(call.args) == 1:
                self._check_operand(source, call.args[0])
                self._add(source, call, held.number())
            case _:
                _check(name in CHANGES or name in SHAPE_METHODS)

    # What calls do with an argument.

    def _argument(self, source: Source, call: ast.AST, argument: ast.AST, held: Held) -> None:
        if not isinstance(call, ast.Call):
            raise HarmfulError
        function = call.func
        imported = self._names.imported(source, function)
        module, _, name = imported.rpartition(".")
        if self._names.is_builtin(source, function):
            self._call_builtin(source, call, argument, held)
        elif self._names.is_foreign(module):
            self._call_library(source, call, argument, held, module, name)
        elif (found := self._names.function(source, function)) is not None:
            self._pass(call, argument, held, found)
        elif isinstance(function, ast.Attribute):
            self._call_method(source, call, argument, held, function)
        else:
            raise HarmfulError

    def _call_builtin(self, source: Source, call: ast.Call, argument: ast.AST, held: Held) -> None:
        is_first = bool(call.args) and call.args[0] is argument
        is_only = is_first and len(call.args) == 1 and not call.keywords
        is_plain = argument in call.args and not call.keywords and not self._program.has_operators
        match name_of(call.func):
            case "print" if argument in call.args:
                _check(prints(self._program, call))
                return
            case "len" if is_only:
                held.fixed()
                return
            case "list" | "tuple" | "reversed" if is_only:
                if held.is_dictionary:
                    return
                made = held.fixed().moved()
            case "enumerate" if is_first:
                made = held.element().inside(ANYWHERE, 1)
            case "zip" if argument in call.args:
                stars = any(isinstance(each, ast.Starred) for each in call.args)
                made = held.element().inside(ANYWHERE, _place(argument, call.args))
                made = made.number() if stars else made
            case "dict" if isinstance(argument, ast.keyword):
                made = held.fixed() if argument.arg is None else held.inside(argument.arg)
            case "str" | "repr" if is_only:
                made = LOOSE
            case "format" if is_first and not any(map(_may_not_fit, call.args[1:])):
                made = LOOSE
            case "float" | "int" | "bool" if is_only:
                made = held.fixed().number()
            case "abs" | "round" | "sum" if is_first and is_plain:
                made = held.number()
            case "min" | "max" | "sorted" if is_plain and not self._program.has_texts:
                made = held.number()._replace(loose=True)
            case "any" | "all" if is_only and not isinstance(argument, ast.GeneratorExp):
                made = held.fixed().number()
            case "map" if len(call.args) == 2 and call.args[1] is argument:
                function = call.args[0]
                _check(self._names.is_builtin(source, function))
                _check(name_of(function) in CONVERSIONS or name_of(function) == "str")
                made = LOOSE if name_of(function) == "str" else held.fixed().moved()
            case _:
                raise HarmfulError
        self._add(source, call, made)

    def _call_library(
        self,
        source: Source,
        call: ast.Call,
        argument: ast.AST,
        held: Held,
        module: str,
        name: str,
    ) -> None:
        _check(not held.is_object and not self._program.defines(name))
        full = f"{module}.{name}"
        is_first = bool(call.args) and call.args[0] is argument
        options = {each.arg for each in call.keywords}
        if name in ARRAY_FUNCTIONS.get(module, ()) and is_first and options <= OPTIONS:
            self._add(source, call, held.fixed().number())
        elif full == "json.dumps":
            self._add(source, call, LOOSE)
        elif full in SAVES:
            _check(not self._program.reads_back)
        else:
            _check(full in LOGS and not self._program.changes_logging)

    def _call_method(
        self,
        source: Source,
        call: ast.Call,
        argument: ast.AST,
        held: Held,
        function: ast.Attribute,
    ) -> None:
        """Of a method that is none of the program's."""
        name, of = function.attr, function.value
        is_only = len(call.args) == 1 and call.args[0] is argument
        if name in FILLS and not self._program.may_define(name):
            self._fill_by_method(source, call, argument, held, function)
            return
        _check(not held.is_object and not self._program.may_define(name))
        if isinstance(of, ast.Constant) and isinstance(of.value, str):
            is_format = name == "format" and not BAD_FORMAT.search(of.value)
            _check(is_format or (name == "join" and is_only))
            self._add(source, call, LOOSE)
        elif name == "write" and is_only:
            is_output = text_of(of) in ("sys.stdout", "sys.stderr")
            _check(not self._program.changes_output)
            _check(is_output or not self._program.reads_back)
            self._add(source, call, LOOSE)  # the number of characters
        elif name in COMPARISONS and is_only:
            self._check_operand(source, of)
            self._add(source, call, held.fixed().number())
        elif name == "load_state_dict":
            _check(is_only)  # copied in place
        else:
            _check(shows(self._program, self._names, source, function))

    def _fill_by_method(
        self,
        source: Source,
        call: ast.Call,
        argument: ast.AST,
        held: Held,
        function: ast.Attribute,
    ) -> None:
        name, of = function.attr, function.value
        if isinstance(argument, ast.keyword):
            _check(name == "update" and argument.arg is not None)
            self._fill(source, of, held.inside(argument.arg), OWN)
            return
        _check(call.args == [argument] and not isinstance(argument, ast.Starred))
        if name == "append":
            self._fill(source, of, held.inside(ANYWHERE), OWN)
        elif name == "extend":
            self._fill(source, of, held.fixed().moved(), OWN)
        else:
            _check(held.is_dictionary)
            self._fill(source, of, held.fixed(), OWN)

    # Functions of the program.

    def _pass(self, call: ast.Call, argument: ast.AST, held: Held, found: Function) -> None:
        """Follows the parameter that gets the argument."""
        function = found.node
        _check(self._names.is_plain(function))
        names = positional(function)[found.given :]
        if isinstance(argument, ast.keyword):
            rest = [*names[len(call.args) :], *(each.arg for each in function.args.kwonlyargs)]
            _check(argument.arg in rest)
            name = str(argument.arg)
        else:
            place = _place(argument, call.args)
            _check(not any(isinstance(each, ast.Starred) for each in call.args[: place + 1]))
            _check(place < len(names))
            name = names[place]
        if not (held.path or held.is_object):
            self._held.update(found.source.variables.bindings[function, name][:1])
        self._hold(found.source, function, name, held)

    def _return(self, source: Source, function: ast.AST, held: Held) -> None:
        """Follows the results of all calls of a function."""
        if self._names.is_property(source, function):
            self._return_to_loads(source, function, held)
            return
        _check(self._names.is_plain(function) and function not in source.generators)
        if (of := source.class_of(function)) is not None:
            self._check_class(source, of)
        self._follow_definition(source, function, held)

    def _return_to_loads(self, source: Source, function: ast.AST, held: Held) -> None:
        """Follows all loads of attributes with the name of a property."""
        of, name = source.class_of(function), str(getattr(function, "name", ""))
        assert of is not None
        _check(function not in source.generators and not name.startswith("__"))
        _check(not self._program.reaches_name(name) and not self._program.replaces(name))
        _check(not source.variables.loads[of, name])
        if not self._is_new(function, held):
            return
        self._check_class(source, of)
        for each, node in self._attributes(name):
            call = each.parents[node]
            if isinstance(call, ast.Call) and call.func is node and not held.is_object:
                continue  # a method of this name: no number can be called
            if isinstance(node.ctx, ast.Load):
                self._add(each, node, held)

    def _follow_definition(self, source: Source, of: ast.AST, held: Held) -> None:
        """Follows the results of all calls of a function, a method or a class."""
        variables = source.variables
        scope, name = variables.of_definition(of)
        _check(not name.startswith("__"))
        if not self._is_new(of, held):
            return
        for load in variables.loads[scope, name]:
            self._follow_call(source, load, held)
        is_method = isinstance(scope, ast.ClassDef)
        is_imported = isinstance(scope, ast.Module) and not self._program.is_main(source)
        if is_imported:
            self._follow_imports(name, held)
        if is_method or is_imported:
            _check(not self._program.reaches_name(name))
            for each, node in self._attributes(name):
                if isinstance(node.ctx, ast.Load):
                    self._follow_call(each, node, held)

    def _follow_imports(self, name: str, held: Held) -> None:
        """Follows the calls of a function that other files import."""
        for source in self._program.sources(name):
            if source is None:
                raise HarmfulError
            named = source.variables.named[name]
            _check(not any(isinstance(each, ast.alias) and each.asname for each in named))
            for node in source.loads[name]:
                self._follow_call(source, node, held)

    def _follow_call(self, source: Source, load: ast.AST, held: Held) -> None:
        """Follows the result of a call. Other uses of the function or class may be such too."""
        call = source.parents[load]
        _check(isinstance(call, ast.Call) and call.func is load)
        self._add(source, call, held)


def _is_stored(node: ast.AST) -> bool:
    return not isinstance(getattr(node, "ctx", None), ast.Load)


def _is_in_branch(source: Source, node: ast.AST) -> bool:
    """May the program not get there, although it runs the function?"""
    return any(isinstance(each, ast.If) for each in source.around(node, source.function(node)))


def _is_tried(source: Source, node: ast.AST) -> bool:
    """Does a handler catch that what the node loads is missing?"""
    for at in source.around(node, source.function(node)):
        match source.parents[at]:
            case ast.Try(body=body, handlers=handlers) if at in body:
                caught = [each.type for each in handlers]
                names = {
                    name_of(of)
                    for each in caught
                    for of in (each.elts if isinstance(each, ast.Tuple) else [each])
                    if of is not None
                }
                if None in caught or names & MISSING:
                    return True
    return False


def _check(is_harmless: bool) -> None:
    if not is_harmless:
        raise HarmfulError


def _place(node: ast.AST, nodes: Iterable[ast.AST]) -> int:
    return next(place for place, each in enumerate(nodes) if each is node)


def _key(node: ast.expr) -> Key:
    """Where the element with this index is: a key that is a text, for elements of lists move."""
    match node:
        case ast.Constant(value=str(key)):
            return key
    return ANYWHERE


def _may_not_fit(spec: ast.expr) -> bool:
    """Is it a format that some numbers do not fit, or that is unknown?"""
    match spec:
        case ast.JoinedStr(values=values):
            return any(map(_may_not_fit, values))
        case ast.Constant(value=str(text)):
            return "c" in text
    return True
