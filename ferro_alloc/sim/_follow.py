"""Follows a number through the source of a program, to a branch or a size.

It goes through expressions, assigned names, containers, attributes, returned values, generators,
exceptions, and the functions and methods of the program that get the number. An object of a class
may have the methods of the classes derived from it. Not followed are installed packages, and
variables that other modules import. The order of statements plays a role for names only: a name
that is bound again has the number no longer.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from heapq import merge
from math import inf
from operator import itemgetter
from types import ModuleType

from ferro_alloc.sim import _definitions
from ferro_alloc.sim._branches import Branches, branches_around, value_of
from ferro_alloc.sim._definitions import FOREIGN, Class, Function, Object, meaning
from ferro_alloc.sim._harmless import are_shown, is_shown
from ferro_alloc.sim._held import (
    ANYWHERE,
    CALLED,
    SHOWN,
    Field,
    Given,
    Held,
    Key,
    Outcome,
    Part,
    Reached,
)
from ferro_alloc.sim._sources import (
    Source,
    decorators,
    is_of_torch,
    name_of,
    parameters,
    parsed_sources,
    positional,
    sources_with,
    text_of,
)
from ferro_alloc.sim._uses import Uses

TO_INTEGERS = {"int", "bool", "ceil", "floor", "trunc"}
SIZES = {"arange", "range", "linspace", "logspace"}
SHAPED = {"empty", "zeros", "ones", "full", "rand", "randn", "randint", "view", "reshape", "expand"}
SHAPED |= {"repeat", "narrow", "split", "chunk", "topk", "new_empty", "new_zeros", "new_ones"}
SHAPED |= {"unfold", "repeat_interleave", "tile", "tensor_split", "new_full", "resize_", "randperm"}
SHAPED |= {"interpolate", "pad", "adaptive_avg_pool2d", "sample"}
"""They make sizes of integers; a floating-point number is none."""
OF_INTEGERS = {"argmax", "argmin", "argsort", "bool", "byte", "int", "long", "nonzero", "short"}
OF_INTEGERS |= {"bisect", "bisect_left", "bisect_right", "bucketize", "digitize", "searchsorted"}
OF_INTEGERS |= {"index", "eq", "ne", "lt", "le", "gt", "ge", "isclose", "greater", "less"}
"""They make integers on the host."""
SELECT = {"nonzero", "argwhere", "flatnonzero", "masked_select", "unique", "unique_consecutive"}
"""The size of what they give depends on the elements."""
OF_FLOATS = {"double", "float", "half", "mean", "std", "var"}
ENDS = {"print", "len", "type", "isinstance", "hasattr", "id"}
# Unknown numbers are assumed to be finite.
ENDS |= {"isfinite", "isnan", "isinf"}
ENDING_ATTRIBUTES = {"shape", "size", "dtype", "device", "numel", "dim", "ndim", "stride", "nbytes"}
ENDING_ATTRIBUTES |= {"is_cuda", "is_contiguous", "is_floating_point", "requires_grad", "grad_fn"}
ENDING_ATTRIBUTES |= {"format", "empty", "full", "maxlen", "maxsize", "qsize"}
ENDING_ATTRIBUTES |= {"isfinite", "isnan", "isinf"}
OF_SHAPE = {"shape", "size", "numel", "dim", "ndim", "len"}
FILLS = {"append", "add", "extend", "insert", "appendleft", "put", "put_nowait"}
TAKE = {"get", "get_nowait", "pop", "popleft"}
PUSH = {"heappush", "insort", "insort_left", "insort_right"}
NAMESPACES = {"SimpleNamespace", "Namespace"}
DICTIONARIES = {"dict", "OrderedDict"}
FIELDS = {"asdict", "vars", "_asdict", "model_dump"}
"""They make a dictionary of an object's attributes."""
COPIES = {"copy", "deepcopy", "replace", "_replace"}
MANAGERS = {"closing", "aclosing", "nullcontext"}
"""Context managers that give what they are made of."""
SETS_ATTRIBUTE = {"setattr", "__setattr__"}
TEXTS = {"format", "str", "repr", "dumps"}
OF_TEXTS = {"float", "loads", "literal_eval", "Decimal"}
LOADS = {"dump": "load", "save": "load"}
"""The function that loads what another one of its module saved."""
PLATEAU = "ReduceLROnPlateau"
KEPT_BY_PLATEAU = {"best", "num_bad_epochs", "cooldown_counter", "in_cooldown", "_last_lr"}
"""Attributes of this scheduler, which takes numbers."""
CHOOSE = {"min", "max", "heappop"}
ORDER = {"sorted", "sort", "nlargest", "nsmallest"}
PAIRS = {"enumerate", "zip"}
TENSORS = {"tensor", "as_tensor", "array", "asarray", "copy", "deepcopy"}
"""They are made of containers, and have the numbers at the same indices."""
DRAW = {"choice", "choices", "multinomial", "WeightedRandomSampler"}
"""They draw by weights."""
FILTER = {"filter", "filterfalse", "takewhile", "dropwhile", "groupby"}
PASS_ELEMENTS = CHOOSE | ORDER | FILTER | {"map"}
SEQUENCES = ORDER | FILTER | {"list", "tuple", "set", "map", "reversed", "deque"}
NOT_FINITE = re.compile(
    r"[(\[{]?([-+]?(float\('[-+]?(inf|infinity|nan)'\)|\w+\.(inf|nan))[,)\]} ]*)+", re.I
)
IN_PLACE = re.compile(r"\w*[^_]_")
"""Methods of tensors that change them."""
METHODS_OF_VALUES = {"format", "get", "item", "float", "exp", "join"}
"""They change nothing."""
DISPLAYS = (ast.Set, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
OF_TORCH = {"torch", "nn", "F"}
"""Modules whose functions may make sizes of integers."""
COMPARES = ("__lt__", "__gt__", "__le__", "__ge__", "__eq__", "__ne__")
MOST_REACHED = 20
"""How much of what a number reaches is looked for."""
MORE_PARTS = 10_000
"""A search for all that a number reaches, which decides already, ends after so many."""
TRUTH = ("__bool__", "__len__")
ENTERS = ("__enter__", "__aenter__")
MAKERS = ("__init__", "__post_init__")
EXITS = ("__exit__", "__aexit__")
MAX_PARTS = 300_000
"""A number that reaches more may decide. Among functions that call each other in turn, a search of
so many takes up to twenty seconds on a busy machine."""
EXACT_PARTS = 50_000
"""Up to so many, each read is searched for alone. Later searches end where an earlier one has
been."""


TOO_LONG = Reached("", "")
CONVERSION = "conversion to an integer"


class DecidesError(Exception):
    """The number reaches a branch or a size."""

    def __init__(self, reached: Reached) -> None:
        super().__init__(str(reached))
        self.reached = reached


class EnoughError(Exception):
    """A search for all that a number reaches has found enough, or took too long."""


Argument = tuple[ast.AST, str, Held]
"""A function, its parameter, and what that has of the number."""
_uses_of_arguments: dict[Argument, Outcome] = {}
"""What is known of these for all searches."""


class Calls:
    """What functions give their callers, in one search.

    Within a cycle of calls this is what was found so far. It is looked for again until nothing new
    is found, and kept for other searches if it depends on no call that is still looked at.
    """

    def __init__(self) -> None:
        self._depths: dict[Argument, int] = {}
        """Of those that are looked at."""
        self._so_far: dict[Argument, tuple[Outcome, float]] = {}
        """Of those in a cycle: what was found, and the depth of the outermost call of the cycle."""
        self._outermost = inf
        """The least depth of the calls that were asked for while they were looked at."""
        self.has_cycle = False
        self.gaps = 0
        """Increased by each part that was left out because this search has looked at it already,
        although it may decide."""
        self._with_gaps: dict[Argument, Outcome] = {}
        """What holds for this search only."""

    def use(self, of: Argument, look: Callable[[], Outcome]) -> Outcome:
        if of in _uses_of_arguments:
            return _uses_of_arguments[of]
        if of in self._with_gaps:
            self.gaps += 1
            return self._with_gaps[of]
        if of in self._depths or of in self._so_far:
            found, outermost = self._so_far.get(of, (SHOWN, inf))
            self._outermost = min(self._outermost, self._depths.get(of, outermost))
            self.has_cycle = True
            return found
        depth = self._depths[of] = len(self._depths)
        before, self._outermost = self._outermost, inf
        gaps = self.gaps
        found = SHOWN
        while True:
            known = set(self._so_far)
            made = look()
            is_new = isinstance(made, Reached) or not made <= found
            found = made if isinstance(made, Reached) else found | made
            is_in_cycle = self._outermost <= depth
            if not is_new or not is_in_cycle or isinstance(found, Reached):
                break
            self._so_far = {each: use for each, use in self._so_far.items() if each in known}
            self._so_far[of] = (found, self._outermost)
        del self._depths[of]
        self._so_far.pop(of, None)
        if self._outermost < depth and not isinstance(found, Reached):
            self._so_far[of] = (found, self._outermost)
        else:
            is_whole = self.gaps == gaps or isinstance(found, Reached)
            kept = _uses_of_arguments if is_whole else self._with_gaps
            kept[of] = found
            for each, (use, outermost) in [*self._so_far.items()]:
                if outermost >= depth and not isinstance(found, Reached):
                    kept[each] = use
                    del self._so_far[each]
            self._outermost = inf
        self._outermost = min(before, self._outermost)
        return found


PartWithin = tuple[ast.AST | None, bool, Part]


class Earlier:
    """What earlier searches have found."""

    def __init__(self) -> None:
        self.count = 0
        """Of parts, as often as one was looked at."""
        self.more = 0
        """The same of searches for all that a number reaches."""
        self.outcomes: dict[PartWithin, Outcome] = {}
        """Of parts, if what a function returns goes to its caller, and whether only that counts."""
        self.bindings: set[ast.AST] = set()
        """Targets and parameters that got a number which was followed."""


_earlier = Earlier()


def is_long() -> bool:
    """Have the searches so far taken long?"""
    return _earlier.count >= EXACT_PARTS


def may_find_all() -> bool:
    """Have they, also those for all that a number reaches, not?"""
    return not is_long() and _earlier.more < EXACT_PARTS


class Loads(ast.AST):
    """Stands for all expressions that load what a variable got at one place."""

    def __init__(self, name: str, store: ast.AST) -> None:
        super().__init__()
        self.name = name
        self.store = store


@cache
def _loads(name: str, store: ast.AST) -> Loads:
    return Loads(name, store)


_uses: dict[tuple[object, Class | None, bool], Uses] = {}
"""Of the loads of a variable or an object of a class, and whether it is a container."""


def _is_method(of: Class | None, name: str) -> bool:
    """Is it a method of the objects of a class of the program?"""
    if of is None or not of.source.is_of_program or name in FIELDS | COPIES:
        return False
    return bool(_definitions.methods_of_objects(of, name))


def _is_population(call: ast.Call, argument: ast.AST) -> bool:
    """Is it what `random.sample` chooses from? The method of a distribution gets only a shape."""
    names = {each.arg for each in call.keywords}
    is_of_random = len(call.args) > 1 or "k" in names
    is_first = argument in call.args[:1] and not isinstance(argument, ast.Starred)
    is_named = isinstance(argument, ast.keyword) and argument.arg == "population"
    return is_of_random and (is_first or is_named)


def _is_field(of: Class | None, name: str) -> bool:
    """Does no code run where an attribute of such an object is loaded?"""
    return name not in FIELDS | COPIES | {"__dict__"} and (
        of is None
        or (
            of.source.is_of_program
            and not _definitions.methods_of_objects(of, name)
            and not _definitions.getters(of, name)
            and (_definitions.has_field(of, name) or not _definitions.computes_fields(of))
        )
    )


class Search:
    """What the search of one read has looked at, in all files."""

    def __init__(self, finds_all: bool = False) -> None:
        self.finds_all = finds_all
        """Does it go on after the first that the number reaches? Within the program's functions it
        finds one for each argument."""
        self.reached: dict[Reached, None] = {}
        """All that it has found, if so."""
        self._elsewhere: dict[Part, bool] = {}
        """Parts of other files, and whether all that follows from them was looked at, and decides
        nothing."""
        self.by_name: set[ast.AST] = set()
        """Where the number came by a name, as an attribute of a class, and not with an object."""
        self.calls = Calls()
        self._branches: dict[bool, Branches | None] = {}
        self._bindings: set[ast.AST] = set()
        """Targets and parameters that get the number."""
        self.choice: Reached | None = None
        """The first conditional expression that integers decide."""
        self._parts = 0
        self.is_long = is_long() and not finds_all
        """Does it count what earlier searches have found?"""
        self.outcomes: dict[PartWithin, Outcome] = {}

    def count_part(self) -> None:
        self._parts += 1
        if self.finds_all:
            _earlier.more += 1
            if self._parts > MORE_PARTS:
                raise EnoughError
            return
        _earlier.count += 1
        if self._parts > MAX_PARTS:
            raise DecidesError(TOO_LONG)

    def add_reached(self, reached: Reached) -> None:
        self.reached[reached] = None
        if len(self.reached) >= MOST_REACHED:
            raise EnoughError

    def look_elsewhere(self, part: Part, look: Callable[[], object]) -> None:
        """Looks at a part of another file, once."""
        if part in self._elsewhere:
            self.calls.gaps += 0 if self._elsewhere[part] else 1
            return
        self._elsewhere[part] = False
        before = len(self.reached), self.calls.gaps
        look()
        self._elsewhere[part] = before == (len(self.reached), self.calls.gaps)

    def end(self) -> None:
        """Keeps what was found, which is complete now."""
        if self.is_long and self.choice is None and not self.calls.has_cycle:
            _earlier.outcomes |= self.outcomes
        _earlier.bindings |= self._bindings

    def add_binding(self, node: ast.AST, held: Held) -> None:
        if not held.keys:
            self._bindings.add(node)

    def branches(self, hold_all: bool) -> Branches | None:
        """Of the program. `hold_all`: to look at them as if all variables got the number."""
        if hold_all not in self._branches:
            self._branches[hold_all] = branches_around(sys._getframe())
        return self._branches[hold_all]

    def is_held(self, binding: ast.AST) -> bool:
        """Does it give a variable the number?"""
        return binding in self._bindings or (self.is_long and binding in _earlier.bindings)


class Follow:
    """Follows the number through a file.

    What `within`, a function of this file, returns goes to the caller, which uses this class. What
    other functions return goes to all calls of their names.
    """

    def __init__(
        self,
        source: Source,
        within: ast.AST | None,
        before: Follow | Search | None,
        of_argument: bool = False,
    ) -> None:
        self._source = source
        self._parents = source.parents
        self._within = within
        self._given: set[Given] = set()
        self._origins: set[Part] = set()
        """Expressions of objects that were looked at."""
        self._seen: set[Part] = set()
        self._at: Part | None = None
        """The part that is looked at."""
        self._came_from: dict[Part, Part | None] = {}
        self._next: dict[Part, list[Part]] = {}
        self._gives: list[tuple[Part | None, Given]] = []
        self._is_first = not isinstance(before, Follow)
        self._left: list[tuple[Part | None, ast.If, Held]] = []
        """Branches to look at when all that gets the number is known."""
        self._decides_on: set[tuple[ast.AST, Held]] = set()
        """These and earlier ones. What is within one of them is a part of that."""
        self._search: Search
        self._goes_on: bool
        """Does it go on after what the number reaches?"""
        if isinstance(before, Follow):
            self._search = before._search
            self._goes_on = before._goes_on and not of_argument
        else:
            self._search = before or Search()
            self._goes_on = self._search.finds_all
        is_inner = not self._is_first and not source.is_of_program
        self._only_returns = is_inner or is_of_torch(source.file)
        """PyTorch's own branches change no memory: only what it returns or stores counts. The same
        is assumed of the functions that a package calls itself."""

    @property
    def choice(self) -> Reached | None:
        return self._search.choice

    def run(self, parts: Iterable[Part]) -> frozenset[Given]:
        rest: list[Part] = []
        while True:
            try:
                self._add(parts, rest)
                self._go_through(rest)
                break
            except DecidesError as error:
                self._keep_reached(error.reached)
                if not self._goes_on:
                    raise
                self._search.add_reached(error.reached)
                parts = []
        self._keep_outcomes()
        if self._is_first:
            self._search.end()
        return frozenset(self._given)

    def run_from_object(self, of: ast.expr, held: Held) -> None:
        """Of a number in the object of an expression."""
        self.run(self._loads_of_object(of, held))

    def _go_through(self, rest: list[Part]) -> None:
        while rest or self._left:
            if not rest:
                self._at, branch, held = self._left.pop()
                if (self._parents[branch], held) not in self._decides_on:
                    self._add(self._branch(branch, held), rest)
                continue
            self._at = part = rest.pop()
            try:
                self._add(self._go_on(part), rest)
            except DecidesError as error:
                if not self._only_returns or error.reached == TOO_LONG:
                    raise
                if error.reached.what == CONVERSION:
                    node, held = part
                    whole = held._replace(integers=True)
                    self._add([(self._parents[node], whole)], rest)

    def _go_on(self, part: Part) -> Iterable[Part]:
        known = _earlier.outcomes.get(self._key(part)) if self._search.is_long else None
        node, held = part
        if known is None and isinstance(node, Loads):
            return self._loads_at(node.name, node.store, held)
        if known is None:
            return self._step(node, held)
        if isinstance(known, Reached):
            raise DecidesError(known)
        for given in known:
            self._give(given)
        return []

    def _key(self, part: Part) -> PartWithin:
        return self._within, self._only_returns, part

    def _give(self, given: Given) -> None:
        self._given.add(given)
        if self._search.is_long:
            self._gives.append((self._at, given))

    def _keep_reached(self, reached: Reached) -> None:
        """Of the parts that led there."""
        at = self._at
        while at is not None and self._search.is_long:
            _earlier.outcomes[self._key(at)] = reached
            at = self._came_from[at]

    def _keep_outcomes(self) -> None:
        """Of all parts: what each gives was found by the parts that follow from it."""
        if not self._search.is_long:
            return
        before: dict[Part, list[Part]] = {}
        for part, following in self._next.items():
            for each in following:
                before.setdefault(each, []).append(part)
        found: dict[Part, set[Given]] = {part: set() for part in self._seen}
        for start, given in self._gives:
            todo = [start] if start is not None else []
            for part in todo:
                if given not in found[part]:
                    found[part].add(given)
                    todo += before.get(part, ())
        for part, gives in found.items():
            self._search.outcomes[self._key(part)] = frozenset(gives) if gives else SHOWN

    def _add(self, parts: Iterable[Part], rest: list[Part]) -> None:
        for part in parts:
            self._search.count_part()
            if self._search.is_long and self._at is not None:
                self._next.setdefault(self._at, []).append(part)
            if part not in self._seen:
                self._seen.add(part)
                self._came_from[part] = self._at
                rest.append(part)

    def _decides(self, what: str, node: ast.AST) -> DecidesError:
        """For a number that reaches this at a node."""
        return DecidesError(Reached(what, self._source.place(node)))

    def _integer_at(self, call: ast.Call) -> list[Part]:
        """Of a call that makes an integer or a boolean of the number."""
        branches = self._search.branches(False) if self._source.is_of_program else None
        function = meaning(self._source, call.func)
        is_method = function is None and isinstance(call.func, ast.Attribute)
        is_foreign = is_method or function is FOREIGN
        if branches and is_foreign and is_shown(self._source, call, branches.program):
            return []
        raise self._decides(CONVERSION, call)

    def _decided(self, held: Held, condition: ast.AST) -> Iterable[Part]:
        if held.keys:  # whether a container has elements, or what an object is taken for
            return self._follow_method(condition, held, *TRUTH)
        branch = self._parents[condition]
        if not isinstance(branch, ast.If) or not self._may_show(branch):
            raise self._decides("condition", condition)
        self._left.append((self._at, branch, held))
        self._decides_on.add((branch, held))
        return []

    def _branch(self, branch: ast.If, held: Held) -> Iterable[Part]:
        """Of what a branch assigns: the number, or what must only be shown."""
        source, branches = self._source, self._search.branches(False)
        if branches is None:
            raise self._decides("condition", branch.test)
        targets = branches.assigned(source, branch, self._search.is_held)
        if targets is None:
            raise self._decides("condition", branch.test)
        kept = [each for each in targets if branches.is_held(source, value_of(source, each))]
        others = [each for each in targets if each not in kept]
        if not are_shown(source, others, branches.program):
            raise self._decides("condition", branch.test)
        chosen = held._replace(chosen=True)
        return [load for target in kept for load in self._loads_of(target, chosen)]

    def _may_show(self, branch: ast.If) -> bool:
        branches = self._search.branches(True) if self._source.is_of_program else None
        return branches is not None and branches.may_change_nothing(self._source, branch)

    def read(self, node: ast.AST, held: Held) -> Iterable[Part]:
        """The expressions with the number that the instruction at this expression reads."""
        if held.whole and not self._only_returns and self._source.is_condition(node):
            # A tensor is the condition: `_harmless` takes it as decisive, whatever the branch does.
            raise self._decides("condition", node)
        match node:
            case ast.Call(func=function, keywords=keywords) as call:
                name = name_of(function)
                if name in SIZES:
                    raise self._decides("size", call)
                if name in TO_INTEGERS and not held.whole:
                    return self._integer_at(call)
                if name in ENDS:
                    return []
                if name in TEXTS:
                    return [(call, held.in_text())]
                if name == "copy_" and isinstance(function, ast.Attribute):
                    return self._loads_of_copy(function.value, held)
                for keyword in keywords:
                    if keyword.arg == "key":
                        return self._follow_argument(call, keyword, held.inside(CALLED))
                return [(call, held)]
            case ast.Subscript(ctx=ast.Store(), value=value):
                return self._loads_of_copy(value, held)
            case ast.Tuple(ctx=ast.Store()) | ast.List(ctx=ast.Store()):
                return self._loads_of(node, held.inside(ANYWHERE))
            case ast.Tuple() | ast.List() | ast.Set():
                return [(node, held.inside(ANYWHERE))]
            case ast.expr() if getattr(self._parents[node], "iter", None) is node:
                return [(node, held.inside(ANYWHERE))]
            case ast.expr() if getattr(self._parents[node], "test", None) is node:
                return [(node, held)]
            case ast.IfExp():
                return [(node.test, held)]
            case ast.UnaryOp(op=ast.Not()):
                return [(node, held)]
            case ast.expr() if held.whole:  # such as a part of a condition
                return [(node, held)]
        return []

    def _loads_of_copy(self, tensor: ast.expr, held: Held) -> Iterable[Part]:
        """Of numbers that were copied into a tensor on the host, or into a part of it."""
        while isinstance(tensor, ast.Subscript):
            tensor = tensor.value
        return self._loads_of(tensor, held)

    def received(self, node: ast.AST, outcome: Iterable[Given]) -> Iterator[Part]:
        """Of what a function gave to the call or the attribute at this expression."""
        if isinstance(node, ast.With):
            for each in node.items:
                yield from self.received(each.context_expr, outcome)
            return
        for given in outcome:
            of, parameter, held = given
            kind = of.source.class_of(of.node)
            called = node.func if isinstance(node, ast.Call) else None
            if kind and kind.name == PLATEAU and isinstance(called, ast.Attribute):
                yield from self._rates(called.value, held._replace(keys=()))
            of_call = name_of(node.func) if isinstance(node, ast.Call) else ""
            item = self._parents.get(node)
            is_manager = isinstance(item, ast.withitem) and _name_of(of) in ENTERS + EXITS
            if is_manager and self._source.is_of_program:
                assert isinstance(item, ast.withitem)
                if parameter is not None:
                    yield from self._loads_of_object(item.context_expr, held)
                elif _name_of(of) in ENTERS:
                    yield from self._loads_of(item.optional_vars, held)
            elif parameter is None:
                if isinstance(node, ast.Call) and of_call in CHOOSE | ORDER:
                    key = ast.keyword("key", node)
                    yield from self._follow_argument(node, key, held.inside(CALLED))
                else:
                    yield node, held
            elif not self._source.is_of_program:
                # A library calls it, such as torch the forward() of a module, for an outer call.
                self._give(given)
            elif (made := _name_of(of)) in MAKERS and of_call != made:
                yield node, held
            elif (argument := self._argument_of(node, of, parameter)) is not None:
                yield from self._loads_of_object(argument, held)
                is_call = isinstance(node, ast.Call) and argument is node.func
                if is_call and of.source.self_of(of.node) == parameter:
                    yield from self._loads_of_bound(of, held)

    def _loads_of_bound(self, of: Function, held: Held) -> Iterator[Part]:
        """Of the objects whose method the program passes on or stores."""
        for source, load in _definitions.bound(of):
            if source is self._source:
                yield from self._loads_of_object(load.value, held)
            else:
                follow = Follow(source, None, self)
                self._search.look_elsewhere(
                    (load, held), partial(follow.run_from_object, load.value, held)
                )

    def _argument_of(self, node: ast.AST, of: Function, parameter: str) -> ast.expr | None:
        """What a call, or an attribute that is a property, passes to a function's parameter."""
        if isinstance(node, ast.Attribute):
            return node.value
        if not isinstance(node, ast.Call):
            return None
        if not of.source.is_of_program and of.source.self_of(of.node) == parameter:
            return node.func.value if isinstance(node.func, ast.Attribute) else None
        arguments = node.args
        if self._is_bound(node, of):
            arguments = [self._object_of(node.func, of), *arguments]
        for name, argument in zip(positional(of.node), arguments, strict=False):
            if isinstance(argument, ast.Starred):
                break
            if name == parameter:
                return argument
        return next((each.value for each in node.keywords if each.arg == parameter), None)

    def _object_of(self, called: ast.expr, of: Function) -> ast.expr:
        """The object of a bound method, which a variable may have."""
        values: list[ast.AST] = [called]
        if isinstance(called, ast.Name):
            values += self._source.values_of(self._source.variables.of(called))
        for each in values:
            if isinstance(each, ast.Attribute) and each.attr == _name_of(of):
                return each.value
        return called

    def _is_bound(self, call: ast.Call, of: Function) -> bool:
        """Does the call pass an object as the first argument of the function?"""
        if of.source.self_of(of.node) is None:
            return False
        function = call.func
        return not (
            isinstance(function, ast.Attribute)
            and isinstance(meaning(self._source, function.value), Class)
            and "classmethod" not in decorators(of.node)
        )

    def _loads_of(self, target: ast.AST | None, held: Held) -> Iterator[Part]:
        """The expressions that load what is stored in `target`."""
        match target:
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for index, element in enumerate(elements):
                    if isinstance(element, ast.Starred):
                        held = held.moved(index)
                    if held.is_at(index):
                        yield from self._loads_of(element, held.element())
            case ast.Starred(value=value):
                yield from self._loads_of(value, held.inside(ANYWHERE))
            case ast.Name(id=name):
                self._search.add_binding(target, held)
                stores: set[ast.AST] = {target}
                is_changed = isinstance(self._parents[target], ast.AugAssign) and held.keys
                if isinstance(target.ctx, ast.Load) or is_changed:  # all that have this object
                    stores |= set(self._source.stores_before(target))
                    for store in stores:
                        yield from self._loads_of_origin(store, held)
                if self._search.is_long:
                    yield from ((_loads(name, store), held) for store in stores)
                    return
                for store in stores:
                    yield from self._loads_at(name, store, held)
            case ast.Attribute(value=value, attr=name):
                found = meaning(self._source, value)
                of = found.of if isinstance(found, Object) else None
                if isinstance(found, Class):
                    yield from self._loads_of_class(found, name, held)
                if of is None:  # any object of this name is taken to be the same one
                    for load in self._source.loads[text_of(target)]:
                        yield load, held
                if of is None and isinstance(value, ast.Attribute) and not self._is_module(value):
                    yield from self._loads_of_all(name, held)
                yield from self._loads_of_attribute(value, of, name, held)
            case ast.Subscript(value=value, slice=index):
                yield from self._loads_of_object(value, held.inside(_key(index)))
                if (of := self._class_of(value)) is not None:
                    setters = _of_self(_definitions.methods(of, "__setitem__"))
                    yield from self._set_by(value, setters, held)

    def _loads_of_all(self, name: str, held: Held) -> Iterator[Part]:
        """Of a number that was stored in an attribute of an object of an unknown class which
        another object has: other variables may have it too."""
        for source in sources_with(f".{name}") if self._source.is_of_program else ():
            for load in source.attributes[name]:
                yield from self._in_file(source, (load, held))

    def _loads_of_class(self, of: Class, name: str, held: Held) -> Iterator[Part]:
        """Of a number that was stored in an attribute of a class."""
        family = {of, *_definitions.below(of)}
        for source in sources_with(f".{name}") if self._source.is_of_program else ():
            for load in source.attributes[name]:
                found = meaning(source, load.value)
                kind = found.of if isinstance(found, Object) else found
                if isinstance(kind, Class) and kind in family:
                    yield from self._in_file(source, (load, held))

    def _loads_at(self, name: str, store: ast.AST, held: Held) -> Iterator[Part]:
        """Those of what a variable got at one place."""
        loads = self._source.loads_of(name, [store])
        return self._that_take(self._source, (name, store), loads, held)

    def _that_take(
        self, source: Source, of: object, loads: Iterable[ast.expr], held: Held
    ) -> Iterator[Part]:
        """The loads of a container or an object that may take the element or the attribute with the
        number."""
        return (part for _, part in self._places_of(source, of, enumerate(loads), held))

    def _places_of(
        self, source: Source, of: object, loads: Iterable[tuple[int, ast.AST]], held: Held
    ) -> Iterable[tuple[int, Part]]:
        """The same with their places among all."""
        first = held.first
        kind, key = (first.of, first.name) if isinstance(first, Field) else (None, first)
        if held.text or not isinstance(key, str | int) or key == "":
            return ((place, (load, held)) for place, load in loads)
        is_object = isinstance(first, Field)
        index = (of, kind, is_object)
        if index not in _uses:
            if is_object:
                is_field, is_method = partial(_is_field, kind), partial(_is_method, kind)
                _uses[index] = Uses(source, loads, is_field, is_method)
            else:
                _uses[index] = Uses(source, loads)
        uses = _uses[index]
        called = (
            each
            for name, each in uses.called.items()
            if not source.is_of_program or self._is_used_by(kind, name, held)
        )
        rest = merge(uses.others, *called, key=itemgetter(0))
        taken = [(place, source.parents[load]) for place, load in uses.taken.get(key, ())]
        inner = self._places_of(source, (of, kind, key), taken, held.element())
        return merge(((place, (load, held)) for place, load in rest), inner, key=itemgetter(0))

    def _is_used_by(self, of: Class | None, name: str, held: Held) -> bool:
        """Does a method give its caller something of the number that its object has?"""
        assert of is not None
        methods = _of_self(_definitions.methods_of_objects(of, name))
        return any(self._use_of_argument(each, own, held) for each, own in methods)

    def _class_of(self, node: ast.expr) -> Class | None:
        found = meaning(self._source, node)
        return found.of if isinstance(found, Object) else None

    def _loads_of_attribute(
        self, of: ast.expr, kind: Class | None, name: str, held: Held
    ) -> Iterator[Part]:
        """Of a number that was stored in an attribute, by its setter if it has one. An empty name
        may be any."""
        yield from self._loads_of_object(of, held.inside(Field(kind, name)))
        if kind:
            setters = _definitions.setters(kind, name)
            others = [*_definitions.methods(kind, "__setattr__")]
        else:
            named = _definitions.methods_named(name)
            setters = _of_self(each for each in named if "setter" in decorators(each.node))
            others = _definitions.methods_named("__setattr__")
        yield from self._set_by(of, [*setters, *_of_self(others)], held)

    def _set_by(
        self, of: ast.expr, setters: Iterable[tuple[Function, str]], held: Held
    ) -> Iterator[Part]:
        """Of a number that is the last argument of functions, of which this parameter is the
        object."""
        for setter, parameter in setters:
            value = positional(setter.node)[-1]
            if value == parameter or setter.node is self._within:
                continue
            for given in self._use_of_argument(setter, value, held):
                if given.parameter == parameter:
                    yield from self._loads_of_object(of, given.held)

    def _loads_of_origin(self, store: ast.AST, held: Held) -> Iterator[Part]:
        """Of a number that was stored in an object that a target got from an expression."""
        at, parent = store, self._parents.get(store)
        while isinstance(parent, ast.Tuple | ast.List):
            place = next(i for i, each in enumerate(parent.elts) if each is at)
            held, at, parent = held.inside(place), parent, self._parents[parent]
        match parent:
            case ast.Assign(value=ast.Name() | ast.Attribute() | ast.Subscript() as of):
                pass
            case ast.For(target=target, iter=of) | ast.comprehension(target=target, iter=of) if (
                target is at
            ):
                held = held.inside(ANYWHERE)
            case ast.withitem(context_expr=of) if isinstance(held.first, Field):
                yield from self._follow_method(of, held, *EXITS)
            case _:
                return
        if (of, held) not in self._origins:
            self._origins.add((of, held))
            yield from self._loads_of_object(of, held)

    def _loads_of_object(self, of: ast.expr, held: Held) -> Iterator[Part]:
        """Of a number that was stored in the object of an expression."""
        yield from self._loads_of(of, held)
        match of:
            case ast.Call(func=ast.Attribute(attr="setdefault", value=value), args=[key, *_]):
                yield from self._loads_of_object(value, held.inside(_key(key)))
                return
            case ast.Call(func=ast.Attribute(attr="values", value=value), args=[]):
                yield from self._loads_of_object(value, held)
                return
            case ast.Call(func=ast.Attribute(attr="items", value=value), args=[]):
                if held.element().is_at(1):
                    value_of = held.element().element().inside(ANYWHERE)
                    yield from self._loads_of_object(value, value_of)
                return
            case ast.Call(func=ast.Name(id=pairs), args=args) if pairs in PAIRS:
                for place, each in enumerate(args, pairs == "enumerate"):
                    if held.element().is_at(place):
                        value_of = held.element().element().inside(ANYWHERE)
                        yield from self._loads_of_object(each, value_of)
                return
            case ast.Call(func=ast.Name(id=copies), args=[*_, copied]) if copies in SEQUENCES:
                yield from self._loads_of_object(copied, held)
                return
            case (
                ast.Attribute(attr="__dict__", value=value)
                | ast.Call(func=ast.Name(id="vars"), args=[value])
            ):
                field = Field(self._class_of(value), "")
                if isinstance(held.first, str):
                    field = field._replace(name=held.first)
                yield from self._loads_of_object(value, held.element().inside(field))
                return
            case ast.Call(func=ast.Name(id="super")):
                method = self._source.function(of)
                name = self._source.self_of(method)
            case ast.Name(id=name):
                method, _ = self._source.variables.of(of)
            case _:
                return
        if name is not None and self._source.self_of(method) == name:
            yield from self._loads_of_self(self._parents[method], held)
        elif method is self._within and name in parameters(method):
            self._give(Given(Function(self._source, method), name, held))

    def _loads_of_self(self, of: ast.AST, held: Held) -> Iterator[Part]:
        """Of a number that was stored in the object of a method of this class."""
        assert isinstance(of, ast.ClassDef)
        yield from self._that_take(self._source, of, self._source.loads_of_self(of), held)
        within = self._within
        name = self._source.self_of(within) if within is not None else None
        if within is not None and name and self._source.is_related(self._parents[within], of):
            self._give(Given(Function(self._source, within), name, held))

    def _follow_return(self, function: ast.AST, held: Held, later: bool) -> Iterable[Part]:
        """`later`: the caller of the function gets an iterator or a task, which other code runs."""
        if function is self._within:
            self._give(Given(Function(self._source, function), None, held))
            return []
        if isinstance(function, ast.Lambda):
            return [(function, held.inside(CALLED))]
        # What a method returns of its object is found where the object is used.
        if self._source.class_of(function) is not None and not later and self._is_of_self(function):
            return []
        return self._calls_of(function, held.inside(CALLED))

    def _is_of_self(self, function: ast.AST) -> bool:
        """Did what is looked at come into a method with the object?"""
        at = self._at
        while at is not None:
            node, _ = at
            if node in self._search.by_name:
                return False
            while isinstance(node, ast.Attribute | ast.Subscript):
                node = node.value
            if isinstance(node, ast.Name) and node.id == self._source.self_of(function):
                return True
            if self._source.function(node) is not function:
                return False
            at = self._came_from[at]
        return False

    def _calls_of(self, function: ast.AST, held: Held) -> Iterator[Part]:
        """The expressions that load a function, in all files of the program."""
        name = _name_of(Function(self._source, function))
        outer = self._source.function(self._parents[function])
        is_method = self._source.class_of(function) is not None
        if not is_method:
            for load in self._source.loads_of(name, [outer]):
                yield load, held
        if not self._source.is_of_program or not (is_method or isinstance(outer, ast.Module)):
            return
        for source in sources_with(f"{name}(", f".{name}"):
            for load in (*source.loads[name], *source.attributes[name]):
                found = meaning(source, load)
                if found is None and is_method and isinstance(load, ast.Attribute):
                    found = Function(self._source, function)
                if isinstance(found, Function) and self._may_run(found, function):
                    is_loaded = is_method and _definitions.is_property(function)
                    yield from self._in_file(source, (load, held.element() if is_loaded else held))

    def _in_file(self, source: Source, part: Part) -> Iterator[Part]:
        """Goes on there, with another search if it is another file."""
        self._search.by_name.add(part[0])
        if source is self._source:
            yield part
        else:
            self._search.look_elsewhere(part, lambda: Follow(source, None, self).run([part]))

    def _may_run(self, called: Function, function: ast.AST) -> bool:
        """Does a call of one function run the other, or of a method one that overrides it?"""
        mine, other = self._source.class_of(function), called.source.class_of(called.node)
        return called.node is function or (
            mine is not None
            and other is not None
            and Class(called.source, other) in _definitions.above(Class(self._source, mine))
        )

    def _use_of_argument(self, of: Function, parameter: str, held: Held) -> frozenset[Given]:
        """Of what is passed to a parameter of a function of the program."""
        use = self._search.calls.use(
            (of.node, parameter, held), lambda: self._use_in(of, parameter, held)
        )
        if isinstance(use, Reached):
            raise DecidesError(use)
        return use

    def _use_in(self, of: Function, parameter: str, held: Held) -> Outcome:
        for each in ast.walk(of.node.args):  # type: ignore[attr-defined]
            if isinstance(each, ast.arg) and each.arg == parameter:
                self._search.add_binding(each, held)
        loads = of.source.loads_of(parameter, [of.node])
        parts = self._that_take(of.source, (parameter, of.node), loads, held)
        try:
            return Follow(of.source, of.node, self, of_argument=True).run(parts)
        except DecidesError as error:
            return error.reached

    def _step(self, node: ast.AST, held: Held) -> Iterable[Part]:
        """The expressions to go on with."""
        parent = self._parents[node]
        whole = [(parent, held)]
        if isinstance(getattr(node, "ctx", None), ast.Store):
            return []
        if held.text:
            return self._step_of_text(node, parent, held)
        match parent:
            case ast.Return():
                function = self._source.function(node)
                return self._follow_return(
                    function, held, isinstance(function, ast.AsyncFunctionDef)
                )
            case ast.Lambda():
                return self._follow_return(parent, held, False)
            case ast.Yield():
                return self._follow_return(self._source.function(node), held.inside(ANYWHERE), True)
            case ast.YieldFrom():
                return self._follow_return(self._source.function(node), held, True)
            case (
                ast.If(test=test)
                | ast.While(test=test)
                | ast.Assert(test=test)
                | ast.match_case(guard=test)
            ) if test is node:
                return self._decided(held, node)
            case ast.IfExp(test=test, body=one, orelse=other) if test is node:
                if held.whole and not held.keys and self._search.choice is None:
                    self._search.choice = self._decides("condition", node).reached
                return [] if held.keys else self._chosen_from(parent, node, held, one, other)
            case ast.BoolOp(values=[*before, last]) if node in before and not held.keys:
                arms = (*before[before.index(node) + 1 :], last)
                self._chosen_from(parent, node, held, *arms)
                return whole
            case ast.comprehension(ifs=ifs) if node in ifs:
                return self._decided(held, node)
            case ast.UnaryOp(op=ast.Not()) if held.keys:
                return self._follow_method(parent, held, *TRUTH)
            case ast.Match():
                raise self._decides("condition", node)
            case ast.Subscript(slice=index) if index is node and not (held.integers or held.chosen):
                return []  # a floating-point number is no index, so it is a key of a dictionary
            case ast.Subscript(slice=index) if index is node:
                raise self._decides("index", node)
            case ast.Slice():
                raise self._decides("index", node)
            case ast.Starred() if isinstance(held.first, str):  # the keys of a dictionary
                return []
            case ast.Subscript(slice=ast.Slice()) | ast.Starred():
                return [(parent, held.moved())]
            case ast.Subscript(slice=index) if held.has_elements:
                at = index.value if isinstance(index, ast.Constant) else None
                return [(parent, held.element())] if at is None or held.is_at(at) else []
            case ast.Assign(targets=targets):
                return [load for target in targets for load in self._loads_of(target, held)]
            case ast.AugAssign(target=target):
                return self._loads_of(target, held.moved())
            case ast.AnnAssign(target=target):
                return self._loads_of(target, held)
            case ast.NamedExpr(target=target):
                return [*whole, *self._loads_of(target, held)]
            case (
                ast.For(iter=of, target=target)
                | ast.AsyncFor(iter=of, target=target)
                | ast.comprehension(iter=of, target=target)
            ) if held.has_elements and of is node:
                if isinstance(held.first, str):  # the keys of a dictionary
                    return []
                return self._loads_of(target, held.element())
            case ast.For(iter=of, target=target) | ast.comprehension(iter=of, target=target) if (
                of is node and held.keys
            ):
                return [
                    load
                    for at, each in self._follow_method(node, held, "__iter__", "__getitem__")
                    for of_each in self._elements(node, each)
                    for load in self._loads_of(target, of_each)
                    if at is node
                ]
            case ast.withitem():
                return self._entered(node, parent, held)
            case ast.Dict(keys=keys, values=values):
                of_value = (name for name, value in zip(keys, values, strict=True) if value is node)
                name = next(of_value, ANYWHERE)
                if name is None:  # `**`
                    return whole
                return [(parent, held.inside(getattr(name, "value", ANYWHERE)))]
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                if isinstance(node, ast.Starred):
                    return [(parent, held.element().inside(ANYWHERE))]
                place = next(i for i, each in enumerate(elements) if each is node)
                moved = any(isinstance(each, ast.Starred) for each in elements[:place])
                return [(parent, held.inside(ANYWHERE if moved else place))]
            case _ if isinstance(parent, DISPLAYS):
                return [(parent, held.inside(ANYWHERE))]
            case ast.keyword():
                return self._follow_argument(self._parents[parent], parent, held)
            case ast.Call(func=func) if func is not node:
                return self._follow_argument(parent, node, held)
            case ast.Call():
                if held.first is CALLED:
                    return [(parent, held.element())]
                if isinstance(held.first, Field):
                    return self._follow_method(parent, held, "__call__", "forward")
                is_value = isinstance(node, ast.Attribute) and not (
                    self._source.is_of_program and _definitions.methods_named(node.attr)
                )
                if held.chosen and not held.keys and not is_value:
                    raise self._decides("condition", node)
                return whole
            case ast.Attribute():
                return self._follow_attribute(parent, held)
            case ast.Compare(ops=ops, comparators=others):
                if any(isinstance(op, ast.Is | ast.IsNot) for op in ops) and not held.chosen:
                    return []
                if not held.has_elements:
                    is_in = isinstance(ops[0], ast.In | ast.NotIn) and node in others
                    names = ("__contains__",) if is_in else COMPARES
                    return self._follow_method(parent, held, *names)
                if _asks_if_finite(parent):
                    return []
                if isinstance(ops[0], ast.In | ast.NotIn) and len(ops) == 1 and node in others:
                    return []
                return [(parent, Held(integers=True, whole=held.whole))]
            case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str()) | ast.JoinedStr()):
                return [(parent, held.in_text())]
            case ast.BinOp():
                return [(parent, held.moved())]
            case ast.JoinedStr() | ast.FormattedValue():
                return [(parent, held.in_text())]
            case ast.Raise(exc=error) if error is node:
                return self._raised(error, held)
            case ast.stmt():
                return []
            case ast.Subscript():
                return self._follow_method(parent, held, "__getitem__")
            case ast.expr():
                return whole
        return []

    def _entered(self, node: ast.AST, item: ast.withitem, held: Held) -> Iterable[Part]:
        """Of a context manager with the number, or a generator or function that makes one."""
        if not held.keys or held.has_elements or held.first is CALLED:
            return self._loads_of(item.optional_vars, held.element())
        entered = self._follow_method(node, held, *ENTERS)
        ended = self._follow_method(node, held, *EXITS)
        of = held.first.of if isinstance(held.first, Field) else None
        if of is None or not any(_definitions.methods_of_objects(of, each) for each in ENTERS):
            entered = self._loads_of(item.optional_vars, held)
        return [*entered, *(part for part in ended if part[0] is not node)]

    def _elements(self, node: ast.AST, held: Held) -> list[Held]:
        """Of an iterator at this node."""
        if held.has_elements:
            return [held.element()]
        made = self._follow_method(node, held, "__next__")
        return [each for at, each in made if at is node]

    def _step_of_text(self, node: ast.AST, parent: ast.AST, held: Held) -> Iterable[Part]:
        """Of a text that shows the number, to where it becomes a number again."""
        match parent:
            case ast.Call(func=function, args=[of]) if of is node:
                name = name_of(function)
                if name in TO_INTEGERS and not held.whole:
                    raise self._decides(CONVERSION, parent)
                if name in OF_TEXTS | TO_INTEGERS:
                    return [(parent, held._replace(text=False, integers=name in TO_INTEGERS))]
                if not self._source.is_of_program or name in ENDS:
                    return []
                functions, _ = self._functions_of(function)
                return [
                    made
                    for each in functions
                    for parameter, given in self._parameters(parent, each, of, held)
                    for made in self.received(parent, self._use_of_argument(each, parameter, given))
                ]
            case ast.Assign(targets=targets):
                return [load for target in targets for load in self._loads_of(target, held)]
            case ast.AnnAssign(target=target) | ast.NamedExpr(target=target):
                return self._loads_of(target, held)
            case ast.Return():
                return self._follow_return(self._source.function(node), held, False)
            case ast.Attribute():
                call = self._parents[parent]
                return [(call, held)] if isinstance(call, ast.Call) else []
            case ast.Subscript() | ast.JoinedStr() | ast.FormattedValue():
                return [(parent, held)]
        return []

    def _chosen_from(
        self, node: ast.AST, condition: ast.AST, held: Held, *arms: ast.expr
    ) -> Iterable[Part]:
        """Of expressions of which the number decides whether they are evaluated."""
        user = self._parents[node]
        makes_text = isinstance(user, ast.Call) and name_of(user.func) in ("print", "format", "str")
        if makes_text or isinstance(user, ast.FormattedValue):
            return []
        for call in (each for arm in arms for each in ast.walk(arm) if isinstance(each, ast.Call)):
            name, text = name_of(call.func), text_of(call.func)
            is_foreign = meaning(self._source, call.func) is FOREIGN
            only_computes = text.startswith(("math.", "np.")) or name in METHODS_OF_VALUES
            if not only_computes and not (is_foreign and name == text):
                raise self._decides("condition", condition)
        return [(node, Held(chosen=not all(map(_is_float, arms)), whole=held.whole))]

    def _follow_attribute(self, node: ast.Attribute, held: Held) -> Iterable[Part]:
        """Of an attribute of what has the number."""
        name = node.attr
        call = self._parents[node]
        if isinstance(held.first, Field):
            is_called = isinstance(call, ast.Call) and call.func is node
            if name == "__dict__" or (is_called and name in FIELDS):
                made = call if is_called else node
                return [(made, held.element().inside(held.first.name or ANYWHERE))]
            if is_called and name in COPIES:
                return [(call, held)]
            if name == held.first.name:
                return [(node, held.element())]
            parts = self._follow_method(call if is_called else node, held, name)
            return parts if held.first.name else [*parts, (node, held.element())]
        if held.first is CALLED:
            return []
        if held.keys and name == "keys":
            return []
        if held.keys and name == "sort" and isinstance(call, ast.Call):
            ordered = () if call.keywords else self._follow_order(call, held, False)
            return [*self._follow_passed(call, node, held), *ordered]
        if name in ENDING_ATTRIBUTES and not (held.chosen and name in OF_SHAPE):
            return []
        if held.integers and not held.whole and name in ("item", "tolist"):
            if isinstance(call, ast.Call) and call.func is node and name == "item":
                return self._integer_at(call)
            raise self._decides(CONVERSION, node)
        if name in SELECT and isinstance(call, ast.Call) and call.func is node:
            raise self._decides("size", call)
        if held.keys and name in TAKE and isinstance(call, ast.Call):
            first = call.args[0] if call.args else None
            if isinstance(first, ast.Constant) and not held.is_at(first.value):
                return []
            return [(call, held.element())]
        if held.keys and name == "values":
            return [(call, held.element().inside(ANYWHERE))]
        if name == "items":
            return [(call, held.element().inside(1).inside(ANYWHERE))]
        integers = (held.integers or name in OF_INTEGERS) and name not in OF_FLOATS
        return [(node, held._replace(integers=integers))]

    def _follow_method(self, node: ast.AST, held: Held, *names: str) -> Iterable[Part]:
        """Of an object that has the number in a field, and whose method runs at `node`."""
        of = held.first.of if isinstance(held.first, Field) else None
        if of is None:
            return []
        found = (_definitions.methods_of_objects(of, name) for name in names)
        functions = next((each for each in found if each), [])
        if not functions and not of.source.is_of_program and isinstance(node, ast.Call):
            return [(node, held.element())]  # a method of a base class that is not known
        is_loaded = isinstance(node, ast.Attribute)
        run = _definitions.getters(of, names[0]) if is_loaded else _of_self(functions)
        is_missing = not (run or functions or _definitions.has_field(of, names[0]))
        if is_missing and isinstance(node, ast.Call | ast.Attribute):
            run = _of_self(_definitions.computes_fields(of))
            node = node.func if run and isinstance(node, ast.Call) else node
        return [
            part
            for function, parameter in run
            for part in self.received(node, self._use_of_argument(function, parameter, held))
        ]

    def _follow_argument(self, call: ast.AST, argument: ast.AST, held: Held) -> Iterable[Part]:
        """Of what is passed to a call."""
        if not isinstance(call, ast.Call):
            return []
        functions, is_certain = self._functions_of(call.func)
        parts: list[Part] = []
        is_dictionary = isinstance(held.first, str) and not isinstance(argument, ast.keyword)
        if is_dictionary and not functions and name_of(call.func) in SEQUENCES | CHOOSE | PAIRS:
            return []  # they get its keys
        for function in functions:
            for name, each in self._parameters(call, function, argument, held):
                parts += self.received(call, self._use_of_argument(function, name, each))
        if not is_certain:
            parts += self._follow_foreign_call(call, argument, held)
            parts += self._follow_passed(call, argument, held)
        return parts

    def _follow_passed(self, call: ast.Call, argument: ast.AST, held: Held) -> Iterator[Part]:
        """Of an argument, or its elements, that the call passes to a function among its arguments,
        as `sorted(losses, key=f)`, `submit(f, loss)` and `Thread(target=f, args=[loss])` do."""
        passed = [*call.args, *(each.value for each in call.keywords)]
        own = (argument, getattr(argument, "value", None))
        for function in passed if self._source.is_of_program else ():
            found = meaning(self._source, function)
            if isinstance(found, Function) and function not in own:
                break
        else:
            return
        rest = call.args[passed.index(function) + 1 :]
        if (name := name_of(call.func)) in PASS_ELEMENTS:
            held = held.element()
            if name != "map":
                argument, rest = function, [function]
        elif isinstance(argument, ast.keyword) and argument.arg == "args":
            argument = ast.Starred(argument.value)
            rest = [argument]
        made = ast.Call(function, rest, call.keywords)
        for parameter, part in self._parameters(made, found, argument, held):
            for given in self._use_of_argument(found, parameter, part):
                if given.parameter is None:
                    part = given.held.inside(CALLED)
                    key = function if function in call.args else ast.keyword("key", function)
                    yield from self._follow_foreign_call(call, key, part)

    def _functions_of(self, function: ast.expr) -> tuple[list[Function], bool]:
        """The functions of the program that a call may run, and whether it runs no others."""
        if self._source.is_of_program and isinstance(function, ast.Attribute):
            of = None if _is_super(function.value) else self._class_of(function.value)
            if of is not None and (methods := _definitions.methods_of_objects(of, function.attr)):
                return methods, True
            if of is not None and _definitions.computes_fields(of):
                return _definitions.methods_named(function.attr), False
        found = meaning(self._source, function)
        match found:
            case Function():
                return [found], True
            case _ if not self._source.is_of_program:
                return [], False
            case Class():
                method = _definitions.method(found, "__init__")
            case Object(of=of):
                method = _definitions.method(of, "__call__") or _definitions.method(of, "forward")
            case None:
                return self._functions_that_may_be(function), False
            case _:
                return [], False
        return ([], False) if method is None else ([method], True)

    def _functions_that_may_be(self, called: ast.expr) -> list[Function]:
        """Those that an unknown expression may stand for at a call."""
        call = self._parents[called]
        assert isinstance(call, ast.Call)
        if isinstance(called, ast.Attribute):
            found = _definitions.methods_named(called.attr)
            if found or not isinstance(meaning(self._source, called.value), Object):
                return found
        values = _definitions.callable_values(self._source, called)
        return [each for each in dict.fromkeys(values) if self._takes(each, call)]

    def _takes(self, of: Function, call: ast.Call) -> bool:
        """Does the function take as many arguments as the call has?"""
        arguments: ast.arguments = of.node.args  # type: ignore[attr-defined]
        names = positional(of.node)[of.given + self._is_bound(call, of) :]
        count = len(call.args)
        if any(isinstance(each, ast.Starred) for each in call.args):
            return True
        least = len(names) - len(arguments.defaults) - len(call.keywords)
        return least <= count and (count <= len(names) or arguments.vararg is not None)

    def _parameters(
        self, call: ast.Call, of: Function, argument: ast.AST, held: Held
    ) -> Iterator[tuple[str, Held]]:
        """The parameters that get an argument of a call."""
        arguments: ast.arguments = of.node.args  # type: ignore[attr-defined]
        names = positional(of.node)[of.given + self._is_bound(call, of) :]
        by_name = [*names, *(each.arg for each in arguments.kwonlyargs)]
        if isinstance(argument, ast.keyword):
            for name in by_name:
                if argument.arg == name:
                    yield name, held
                elif argument.arg is None and held.is_at(name):
                    yield name, held.element()
            if arguments.kwarg and argument.arg not in by_name:
                name = arguments.kwarg.arg
                yield name, held if argument.arg is None else held.inside(argument.arg)
            return
        at = next((i for i, each in enumerate(call.args) if each is argument), len(call.args))
        if isinstance(argument, ast.Starred) and isinstance(held.place, int):
            at, held = at + held.place, held.element()
        elif any(isinstance(each, ast.Starred) for each in call.args[: at + 1]):
            each = held.element() if isinstance(argument, ast.Starred) else held
            for name in names[at:]:
                yield name, each
            return
        if at < len(names):
            yield names[at], held
        elif arguments.vararg:
            yield arguments.vararg.arg, held.inside(at - len(names))

    def _follow_foreign_call(self, call: ast.Call, argument: ast.AST, held: Held) -> Iterable[Part]:
        """What a function that is not the program's makes of an argument."""
        name = name_of(call.func)
        found = meaning(self._source, call.func) if self._source.is_of_program else None
        if isinstance(found, Class) and (fields := _definitions.fields(found)):
            of_place = dict(zip(map(id, call.args), fields, strict=False))
            of = argument.arg if isinstance(argument, ast.keyword) else of_place.get(id(argument))
            held = held.inside(Field(found, of, fields.get(of)) if of is not None else ANYWHERE)
            return [(call, held), *self._follow_method(call, held, "__post_init__")]
        if name in NAMESPACES and isinstance(argument, ast.keyword) and argument.arg:
            return [(call, held.inside(Field(None, argument.arg)))]
        if isinstance(call.func, ast.Attribute) and name == "send":
            return [(call, held), *self._sent(held)]
        if name in SETS_ATTRIBUTE and len(call.args) > 2:
            target, called, value = call.args[-3:]
            text = called.value if isinstance(called, ast.Constant) else ""
            if value is argument:
                return self._loads_of_attribute(target, self._class_of(target), str(text), held)
        is_first = isinstance(held.first, Field) and argument in call.args[:1]
        if is_first and (parts := self._follow_fields(call, name, held)) is not None:
            return parts
        if name in LOADS and (saver := text_of(call.func)) != name:
            self_parts = self._loads_of_file(f"{saver.rpartition('.')[0]}.{LOADS[name]}", held)
            return [(call, held), *self_parts]
        is_object = isinstance(held.place, Field)
        is_key = isinstance(argument, ast.keyword) and argument.arg == "key"
        is_function = held.first is CALLED
        if is_function or isinstance(argument, ast.Starred):
            held = held.element()
        rounds = name == "round" and len(call.args) == 1 and not call.keywords
        filters = name in FILTER and (is_function or isinstance(call.args[0], ast.Constant))
        filters |= name == "compress" and argument not in call.args[:1]
        maps = name == "map" and call.args and name_of(call.args[0]) in TO_INTEGERS
        converts = (name in TO_INTEGERS or rounds or maps) and not held.whole
        if converts and not (maps or name in SIZES or filters or is_object or held.keys):
            return self._integer_at(call)
        if (name in SIZES or converts or filters) and not is_object:
            what = "size" if name in SIZES else "condition" if filters else CONVERSION
            raise self._decides(what, call)
        finds = name == "where" and len(call.args) == 1 and isinstance(call.func, ast.Attribute)
        if name in DRAW and (argument not in call.args[:1] or name not in ("choice", "choices")):
            return [(call, Held(integers=True, chosen=True, keys=(ANYWHERE,), whole=held.whole))]
        selects = (name in SELECT or finds) and not (is_key or is_function)
        if name == "sample" and _is_population(call, argument):
            return [(call, held.element().inside(ANYWHERE))]
        is_of_torch = text_of(call.func).partition(".")[0] in OF_TORCH and name not in TENSORS
        may_be_size = held.integers if name in SHAPED else False
        may_be_size |= held.chosen and (name in SHAPED or is_of_torch) and not is_object
        if may_be_size or selects:
            raise self._decides("size", call)
        if name in ENDS:
            return [(call, held)] if held.chosen and name in OF_SHAPE else []
        if name in TEXTS:
            return [(call, held.in_text())]
        if name in FILLS | PUSH and isinstance(call.func, ast.Attribute):
            held = held.element() if name == "extend" else held
            filled = call.args[0] if name in PUSH else call.func.value
            return self._loads_of_object(filled, held.inside(ANYWHERE))
        if is_object:
            return []
        if name in CHOOSE or name in ORDER:
            return self._follow_order(call, held, is_key)
        if name in SEQUENCES:
            held = held if is_function else held.element()
            return [(call, held.inside(ANYWHERE))]
        if name in PAIRS and argument in call.args and not isinstance(argument, ast.Starred):
            place = 1 if name == "enumerate" else call.args.index(argument)
            return [(call, held.element().inside(place).inside(ANYWHERE))]
        keyword = argument.arg if isinstance(argument, ast.keyword) else None
        if name in DICTIONARIES:
            if keyword is not None:
                return [(call, held.inside(keyword))]
            if isinstance(held.first, str):
                return [(call, held)]
            return [(call, held.element().element().inside(ANYWHERE))]  # of pairs
        if name == "update" and keyword is not None and isinstance(call.func, ast.Attribute):
            return self._loads_of_object(call.func.value, held.inside(keyword))
        if any(isinstance(key, Field) for key in held.keys):
            return []
        if name in TENSORS and held.keys:
            return [(call, held)]
        whole = held._replace(keys=(), integers=held.integers or name in OF_INTEGERS)
        if not isinstance(call.func, ast.Attribute):
            return [(call, whole)]
        stored: Iterable[Part] = []
        if name == "update" and held.keys:
            stored = self._loads_of_object(call.func.value, held)
        elif name == "step":
            stored = self._rates(call.func.value, whole)
        elif IN_PLACE.fullmatch(name) and not self._is_module(call.func.value):
            stored = self._loads_of_object(call.func.value, whole)
        elif name == "setdefault":
            first = call.args[0] if call.args else None
            stored = self._loads_of_object(call.func.value, held.inside(_key(first)))
        return [(call, whole), *stored]

    def _is_module(self, node: ast.expr) -> bool:
        return isinstance(meaning(self._source, node), ModuleType)

    def _follow_fields(self, call: ast.Call, name: str, held: Held) -> Iterable[Part] | None:
        """Of an object that has the number in a field, and is the first argument of a call."""
        field = held.first
        assert isinstance(field, Field)
        if name in FIELDS:
            return [(call, held.element().inside(field.name or ANYWHERE))]
        if name == "astuple":
            return [(call, held.element().inside(ANYWHERE))]
        if name in COPIES | MANAGERS:
            return [(call, held.inside(ANYWHERE) if name in MANAGERS else held)]
        if name == "enter_context":
            return self._follow_method(call, held, *ENTERS)
        if name == "getattr" and len(call.args) > 1:
            asked = call.args[1]
            if not isinstance(asked, ast.Constant) or asked.value == field.name:
                return [(call, held.element())]
            user = self._parents[call]
            is_called = isinstance(user, ast.Call) and user.func is call
            attribute = ast.Attribute(call.args[0], str(asked.value), ast.Load())
            parts = self._follow_method(user if is_called else attribute, held, str(asked.value))
            return [(call if node is attribute else node, each) for node, each in parts]
        if name in ("float", "int", "next", "iter", "abs", "round", "len"):
            return self._follow_method(call, held, f"__{name}__")
        if name == "bool":
            return self._follow_method(call, held, *TRUTH)
        return None

    def _loads_of_file(self, loader: str, held: Held) -> Iterator[Part]:
        """The calls of this function, such as "json.load", in the files of the program."""
        for source in sources_with(f"{loader}(") if self._source.is_of_program else ():
            for load in source.loads[loader]:
                call = source.parents[load]
                if isinstance(call, ast.Call) and call.func is load:
                    yield from self._in_file(source, (call, held))

    def _raised(self, error: ast.AST, held: Held) -> Iterator[Part]:
        """The loads of an exception with the number in the handlers that may catch it."""
        made = error.func if isinstance(error, ast.Call) else error
        found = self._class_of(error) if isinstance(error, ast.expr) else None
        names = {"Exception", "BaseException"}
        for each in (found, *_definitions.above(found)) if found else ():
            names |= {each.node.name, *map(name_of, each.node.bases)}
        if found is None:
            name = name_of(made) if isinstance(made, ast.expr) else ""
            kinds = getattr(getattr(builtins, name, None), "__mro__", ())
            names |= {name, *(each.__name__ for each in kinds)}
        for source in parsed_sources() if self._source.is_of_program else ():
            for handler in source.handlers:
                kind = handler.type
                caught = kind.elts if isinstance(kind, ast.Tuple) else [kind]
                if names.isdisjoint(name_of(each) for each in caught if each):
                    continue
                for load in source.loads[handler.name or ""]:
                    if handler in source.around(load):
                        yield from self._in_file(source, (load, held))

    def _sent(self, held: Held) -> Iterator[Part]:
        """What generators get by `send`."""
        for source in parsed_sources():
            for node in source.yields:
                yield from self._in_file(source, (node, held))

    def _rates(self, scheduler: ast.expr, held: Held) -> Iterator[Part]:
        """The loads of the learning rates, and of what a scheduler keeps, if the program has one
        that takes numbers."""
        if not (self._source.is_of_program and sources_with(f"{PLATEAU}(")):
            return
        if text := text_of(scheduler):
            for name in KEPT_BY_PLATEAU:
                for load in self._source.loads.get(f"{text}.{name}", ()):
                    yield load, held
        sources_with(".get_last_lr", ".param_groups")
        for source in parsed_sources():
            for node in (*source.rates, *source.attributes.get("get_last_lr", ())):
                yield from self._in_file(source, (node, held))

    def _follow_order(self, call: ast.Call, held: Held, is_key: bool) -> Iterable[Part]:
        """Of the least, the greatest, or all of the arguments in an order that the number decides.
        A number that is compared is in the result. What has it, or has it as its key, is chosen."""
        chooses = name_of(call.func) in CHOOSE
        key = next((each.value for each in call.keywords if each.arg == "key"), None)
        if not is_key and (not chooses or len(call.args) == 1):
            held = held.element()
        of = key.args[0] if isinstance(key, ast.Call) and key.args else None  # of an itemgetter
        is_compared = held.keys and (
            key is None or (isinstance(of, ast.Constant) and held.is_at(of.value))
        )
        if is_key or is_compared:
            held = Held(chosen=True, whole=held.whole)
        if chooses:
            return [(call, held)]
        held = held.inside(ANYWHERE)
        if name_of(call.func) == "sort" and isinstance(call.func, ast.Attribute):
            return self._loads_of_object(call.func.value, held)
        return [(call, held)]


def _asks_if_finite(node: ast.Compare) -> bool:
    """As `x != x` and `x == math.inf` do."""
    texts = [ast.unparse(each) for each in (node.left, *node.comparators)]
    is_same = texts[0] == texts[1] and isinstance(node.ops[0], ast.Eq | ast.NotEq)
    return len(texts) == 2 and (is_same or any(map(NOT_FINITE.fullmatch, texts)))


def _is_float(arm: ast.expr) -> bool:
    """Is it a floating-point constant, with or without a sign?"""
    if isinstance(arm, ast.UnaryOp) and isinstance(arm.op, ast.USub | ast.UAdd):
        arm = arm.operand
    return isinstance(getattr(arm, "value", None), float)


def _key(index: ast.expr | None) -> Key:
    """Where the element with this index is."""
    return index.value if isinstance(index, ast.Constant) else ANYWHERE


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and name_of(node.func) == "super"


def _of_self(methods: Iterable[Function]) -> list[tuple[Function, str]]:
    """Methods with the parameter that is their object."""
    return [(each, name) for each in methods if (name := each.source.self_of(each.node))]


def _name_of(function: Function) -> str:
    return getattr(function.node, "name", "")
