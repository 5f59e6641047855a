"""Branches that change nothing on a card, whether the program takes them or not.

Their bodies only print, log, save, and assign what takes memory of the host alone. What they assign
depends on the condition, so its uses decide further.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

from ferro_alloc.sim._names import NUMBER, Names
from ferro_alloc.sim._program import Program, program_around
from ferro_alloc.sim._sources import Source, name_of, text_of

SAVES = {"json.dump", "pickle.dump", "torch.save", "numpy.save"}
COPIES = {"shutil.copy", "shutil.copyfile", "shutil.copy2"}
LEVELS = {"debug", "info", "warning", "error", "critical"}
LOGS = {"wandb.log", "mlflow.log_metric", "mlflow.log_metrics"}
LOGS |= {f"logging.{level}" for level in LEVELS}
LOGGERS = dict.fromkeys(LEVELS, "logging.getLogger") | {"log": "wandb.init"}
"""Methods, and the functions that make the objects which have them."""
SHOWS = {"set_postfix", "set_postfix_str", "set_description", "set_description_str"}
SHOWS |= {"add_scalar", "add_scalars"}
"""Methods of progress bars, and of writers for TensorBoard."""
SCHEDULERS = "torch.optim.lr_scheduler."
TO_HOST = {"item", "tolist", "cpu", "numpy"}
ON_HOST = TO_HOST | {"clone", "copy", "detach"}
"""They leave on the host what is there."""
STATES = {"named_parameters", "named_buffers", "parameters", "buffers"}
REDUCTIONS = {"mean", "sum", "std", "var", "norm", "median", "prod", "max", "min", "all", "any"}
REDUCTIONS |= {"argmax", "argmin", "count_nonzero", "item", "tolist", "numel", "size", "dim"}
PARTS_WITH_GAPS = {
    "T",
    "mT",
    "t",
    "transpose",
    "permute",
    "narrow",
    "select",
    "expand",
    "expand_as",
}
PARTS_WITH_GAPS |= {"broadcast_to", "unbind", "chunk", "split", "diagonal", "unfold", "as_strided"}
"""Of a tensor. A copy of some to the host takes memory of the card."""
ON_CARD = {"cuda", "to", "half", "bfloat16", "float", "clone", "contiguous", "softmax", "sigmoid"}
PURE = {
    "math": {"exp", "log", "log2", "log10", "sqrt", "isnan", "isinf", "isfinite", "floor", "ceil"},
    "numpy": {"mean", "sum", "std", "median", "exp", "log", "sqrt", "round", "isnan", "isfinite"},
    "time": {"time", "perf_counter", "monotonic", "strftime"},
    "os.path": {"join", "basename", "dirname", "abspath"},
    "datetime.datetime": {"now"},
}
"""Functions that change nothing, with results on the host."""
PLAIN_TYPES = {"int", "float", "bool", "str"}

IsHeld = Callable[[ast.AST], bool]
"""Does this target or parameter get the number that is followed, which is on the host?"""


class Branches:
    def __init__(self, program: Program, names: Names) -> None:
        self.program = program
        self._names = names
        self._is_held: IsHeld = lambda _: False
        self._asked: set[str] = set()
        """Attributes that are looked at."""
        self._of_host: set[tuple[ast.AST, str]] = set()
        """Variables that only get what is of the host. They stay so, since ever more targets are
        held."""
        self._not_of_host: set[tuple[ast.AST, str]] = set()
        """Those of the branch that is looked at."""
        self._changing_nothing: set[ast.If] = set()
        """Branches of which `may_change_nothing` is true."""

    def assigned(self, source: Source, branch: ast.If, is_held: IsHeld) -> list[ast.expr] | None:
        """The targets that a branch assigns, if it changes nothing else; None if it may."""
        self._is_held = is_held
        self._not_of_host = set()
        return self._assigned(source, branch)

    def _assigned(self, source: Source, branch: ast.If) -> list[ast.expr] | None:
        found: list[ast.expr] = []
        branches = [branch]
        for each in branches:
            lines = [*each.body, *each.orelse]
            if all(isinstance(line, ast.Pass) for line in lines):
                return None
            for line in lines:
                if isinstance(line, ast.If):
                    if not self.is_simple(source, line.test):
                        return None
                    if line not in self._changing_nothing:
                        branches.append(line)
                    continue
                targets = self._targets(source, line)
                if targets is None:
                    return None
                found += targets
        return found

    def may_change_nothing(self, source: Source, branch: ast.If) -> bool:
        """Does a branch only assign, if all variables get the number?"""
        if branch not in self._changing_nothing:
            if self.assigned(source, branch, lambda _: True) is None:
                return False
            self._changing_nothing.add(branch)
        return True

    def chooses_host(self, source: Source, choice: ast.IfExp, is_held: IsHeld) -> bool:
        """Does a conditional expression choose from what takes no memory of a card?"""
        self._is_held = is_held
        return self._is_of_host(source, choice.body) and self._is_of_host(source, choice.orelse)

    def _targets(self, source: Source, line: ast.stmt) -> list[ast.expr] | None:
        match line:
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                return []
            case ast.Expr(value=ast.Call() as call):
                return [] if self._only_shows(source, call) else None
            case ast.Assign(targets=targets, value=value):
                is_of_host = self._is_of_host(source, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                targets, is_of_host = [target], self._is_of_host(source, value)
            case ast.AugAssign(target=target, value=value):
                targets, is_of_host = [target], self._names.is_number(source, value)
            case _:
                return None
        parts = [*_parts(targets)]
        is_known = is_of_host and all(self._has_only_host(source, each) for each in parts)
        return parts if is_known else None

    def _has_only_host(self, source: Source, target: ast.expr) -> bool:
        """Does a variable, or an attribute of this name in this file, get nothing on a card?
        Otherwise the assignment would free that."""
        match target:
            case ast.Name():
                variables = source.variables
                of = variables.of(target)
                stores = variables.bindings[of]
                if not stores or of in self._not_of_host:
                    return False
                if of not in self._of_host:
                    is_of_host = all(self._gets_host(source, each) for each in stores)
                    (self._of_host if is_of_host else self._not_of_host).add(of)
                return of in self._of_host
            case ast.Attribute(value=ast.Name(), attr=name) if not self.program.runs(name):
                stores = [
                    each for each in source.all_attributes[name] if isinstance(each.ctx, ast.Store)
                ]
            case _:
                return False
        return bool(stores) and all(self._gets_host(source, each) for each in stores)

    def _gets_host(self, source: Source, target: ast.AST) -> bool:
        if self._gets_number(source, target):
            return True
        parent = source.parents[target]
        if isinstance(parent, ast.AugAssign):
            return self._names.is_number(source, parent.value)
        value = value_of(source, target)
        return value is not None and self._is_of_host(source, value)

    def is_held(self, source: Source, value: ast.expr | None) -> bool:
        """Is it a variable that gets the number that is followed, and nothing else?"""
        if not isinstance(value, ast.Name):
            return False
        variables = source.variables
        bindings = variables.bindings[variables.of(value)]
        return bool(bindings) and all(map(self._is_held, bindings))

    def _gets_number(self, source: Source, binding: ast.AST) -> bool:
        return (
            self._is_held(binding)
            or _is_counter(self._names, source, binding)
            or self._names.gets(source, binding, NUMBER)
        )

    def _only_shows(self, source: Source, call: ast.Call) -> bool:
        """Does the call print, log or save, or set a learning rate?"""
        function, args = call.func, [*call.args, *(each.value for each in call.keywords)]
        names, program = self._names, self.program
        full = names.imported(source, function)
        module, _, name = full.rpartition(".")
        if names.is_builtin(source, function) and name_of(function) == "print":
            return prints(program, call) and self._are_shown(source, args)
        if names.is_foreign(module):
            if program.defines(name) or full not in LOGS | SAVES | COPIES:
                return False
            if full in LOGS:
                return not program.changes_logging and self._are_shown(source, args)
            return self._only_saves(source, full, args)
        if not isinstance(function, ast.Attribute) or program.may_define(function.attr):
            return False
        if function.attr == "load_state_dict":
            # A module copies in place; an optimizer makes a new state.
            is_module = self._is_module(source, function.value)
            return is_module and len(args) == 1 and isinstance(args[0], ast.Name)
        if function.attr == "step":
            is_scheduler = names.is_made_by(source, function.value, SCHEDULERS)
            return is_scheduler and not program.decides_by_rate and self._are_simple(source, args)
        return shows(program, names, source, function) and self._are_shown(source, args)

    def _only_saves(self, source: Source, full: str, args: list[ast.expr]) -> bool:
        """Does it save without memory of the card, and does nothing depend on the file?"""
        program = self.program
        states = args[:1] if full == "torch.save" else []
        is_known = full in COPIES or all(self._is_state(source, each, True) for each in states)
        if program.reads_back and (program.looks_for_files or not is_known):
            return False
        if any(not self._is_state(source, each, False) for each in states):
            return False
        return self._are_shown(source, args[len(states) :]) and not program.gathers_state

    def _is_state(self, source: Source, node: ast.expr, only: bool) -> bool:
        """Is it what a `state_dict()` gives, or holds, if not `only`, anything that exists?"""
        match node:
            case ast.Call(func=ast.Attribute(attr="state_dict", value=of), args=[], keywords=[]):
                return bool(text_of(of)) and not self.program.defines("state_dict")
            case ast.Dict(keys=keys, values=values):
                return None not in keys and all(
                    self._is_state(source, each, only) for each in values
                )
            case ast.DictComp(key=key, value=value, generators=[each]):
                of_tensors = self._is_states(each.iter) and self._are_of_names(each)
                return of_tensors and self._are_simple(source, [key, value])
        return not only and self.is_simple(source, node)

    def _is_states(self, node: ast.expr) -> bool:
        """Does it iterate over the tensors of a module, without memory of the card?"""
        match node:
            case ast.Call(func=ast.Attribute(attr="items" | "values", value=of), args=[]):
                return isinstance(of, ast.Call) and self._is_states(of)
            case ast.Call(func=ast.Attribute(attr=name, value=of), args=[], keywords=[]):
                is_known = name in STATES | {"state_dict"} and not self.program.defines(name)
                return is_known and bool(text_of(of)) and not self.program.gathers_state
        return False

    def _are_of_names(self, over: ast.comprehension) -> bool:
        """Do the conditions of a comprehension, if it has any, only look at the names of tensors,
        or at whether they are trained?"""
        targets = {each.id for each in ast.walk(over.target) if isinstance(each, ast.Name)}

        def is_target(node: ast.expr) -> bool:
            return isinstance(node, ast.Name) and node.id in targets

        def is_of_names(test: ast.expr) -> bool:
            match test:
                case ast.UnaryOp(op=ast.Not(), operand=of):
                    return is_of_names(of)
                case ast.BoolOp(values=values):
                    return all(map(is_of_names, values))
                case ast.Attribute(value=of, attr="requires_grad"):
                    return is_target(of)
                case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[within]):
                    is_part = isinstance(left, ast.Constant) and is_target(within)
                    is_listed = is_target(left) and isinstance(within, ast.Name)
                    return is_part or (is_listed and not self.program.defines("__contains__"))
                case ast.Call(
                    func=ast.Attribute(attr="startswith" | "endswith", value=of),
                    args=[argument],
                    keywords=[],
                ):
                    parts = argument.elts if isinstance(argument, ast.Tuple) else [argument]
                    return is_target(of) and all(isinstance(each, ast.Constant) for each in parts)
            return False

        return all(map(is_of_names, over.ifs))

    def _are_simple(self, source: Source, nodes: Iterable[ast.expr]) -> bool:
        return all(self.is_simple(source, each) for each in nodes)

    def _are_shown(
        self, source: Source, nodes: Iterable[ast.expr], of_any_size: bool = False
    ) -> bool:
        """Does nothing but a text of them, or a file, come of it? The text of a tensor with many
        elements takes memory of the card, unless none is made, or only one that fits a number."""
        return all(
            self._is_of_host(source, each)
            or (
                not self.program.has_texts
                and self.is_simple(source, each)
                and (of_any_size or not self._may_be_large(source, each))
            )
            for each in nodes
        )

    def _is_module(self, source: Source, node: ast.expr) -> bool:
        """Is it used as a module, which has parameters, or is called?"""
        uses = source.loads.get(text_of(node), ()) if text_of(node) else ()
        return self._has_states(source, node) or any(
            isinstance(call := source.parents[each], ast.Call) and call.func is each
            for each in uses
        )

    def _may_be_large(self, source: Source, node: ast.expr) -> bool:
        """Does the source tell that it may be a tensor of many elements on a card?"""

        def may_be_large(*nodes: ast.expr) -> bool:
            return any(self._may_be_large(source, each) for each in nodes)

        match node:
            case ast.Name(id=name):
                is_number = any(source.loads.get(f"{name}.{each}") for each in ("item", "backward"))
                if is_number or name in self._asked or self._is_module(source, node):
                    return False
                self._asked.add(name)
                try:
                    return may_be_large(*self._values(source, node))
                finally:
                    self._asked.discard(name)
            case ast.Subscript(value=of) | ast.UnaryOp(operand=of):
                return may_be_large(of)
            case ast.BinOp(left=left, right=right) | ast.Compare(left=left, comparators=[right]):
                return may_be_large(left, right)
            case ast.Attribute(value=of, attr=name):
                return name in PARTS_WITH_GAPS and may_be_large(of)
            case ast.Call(func=function, args=args):
                return self._makes_large(source, function, args)
        return False

    def _makes_large(self, source: Source, function: ast.expr, args: list[ast.expr]) -> bool:
        """The same of the result of a call."""
        name = name_of(function)
        if name in REDUCTIONS or name.endswith(("loss", "entropy")):
            return False
        module, _, _ = self._names.imported(source, function).rpartition(".")
        if module in ("torch", "torch.nn.functional", "torch.fft", "torch.linalg"):
            return True
        if isinstance(function, ast.Attribute) and name in ON_CARD | PARTS_WITH_GAPS:
            is_to_host = any(isinstance(each, ast.Constant) for each in args) and name == "to"
            on_card = name in ("cuda", "half", "bfloat16") or (name == "to" and not is_to_host)
            return on_card or self._may_be_large(source, function.value)
        return not module and self._has_states(source, function)

    def _has_states(self, source: Source, node: ast.expr) -> bool:
        return any(source.loads.get(f"{text_of(node)}.{each}") for each in STATES)

    def _values(self, source: Source, name: ast.Name) -> list[ast.expr]:
        """What assignments store in a variable, as far as that is known."""
        variables = source.variables
        values = [value_of(source, each) for each in variables.bindings[variables.of(name)]]
        return [each for each in values if each is not None]

    def _may_have_gaps(self, source: Source, node: ast.expr) -> bool:
        """May it be a part of a tensor whose elements do not lie side by side?"""
        match node:
            case ast.Name(id=name) if name not in self._asked:
                self._asked.add(name)
                try:
                    values = self._values(source, node)
                    return any(self._may_have_gaps(source, each) for each in values)
                finally:
                    self._asked.discard(name)
            case ast.Subscript(slice=ast.Tuple(elts=[_, *rest])):
                return bool(rest)
            case ast.Subscript(value=of):
                return self._may_have_gaps(source, of)
            case (
                ast.Attribute(value=of, attr=name)
                | ast.Call(func=ast.Attribute(value=of, attr=name))
            ):
                return name in PARTS_WITH_GAPS or (
                    name in ("detach", "data") and self._may_have_gaps(source, of)
                )
        return False

    def is_simple(self, source: Source, node: ast.expr) -> bool:
        """Does its evaluation change nothing, and take no memory of a card?"""
        match node:
            case ast.Constant() | ast.Name():
                return True
            case ast.Attribute(value=of, attr=name):
                return not self.program.runs(name) and self.is_simple(source, of)
            case ast.FormattedValue(value=of, format_spec=spec):
                return (spec is None or self.is_simple(source, spec)) and self._are_shown(
                    source, [of], of_any_size=spec is not None
                )
            case ast.JoinedStr(values=values) | ast.BoolOp(values=values):
                return self._are_simple(source, values)
            case ast.Tuple(elts=values) | ast.List(elts=values):
                return self._are_simple(source, values)
            case ast.Dict(keys=keys, values=values):
                return None not in keys and self._are_simple(
                    source, [*(each for each in keys if each), *values]
                )
            case ast.Subscript(value=of, slice=index):
                is_one = isinstance(index, ast.Constant) or self._names.is_number(source, index)
                return (
                    is_one and not self.program.runs("__getitem__") and self.is_simple(source, of)
                )
            case ast.UnaryOp(op=ast.Not(), operand=of):
                return self.is_simple(source, of)
            case ast.Compare(left=left, comparators=others):
                return not self.program.has_operators and all(
                    self._is_of_host(source, each)
                    or (isinstance(each, ast.Name) and not self._may_be_large(source, each))
                    for each in (left, *others)
                )
            case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str()), right=of):
                return self._are_shown(source, of.elts if isinstance(of, ast.Tuple) else [of])
            case ast.Call(func=ast.Attribute(attr="item" | "detach" as name, value=of), args=[]):
                return not self.program.defines(name) and self.is_simple(source, of)
            case ast.Call(
                func=ast.Attribute(attr="format", value=ast.Constant(value=str())), args=args
            ):
                return not node.keywords and self._are_shown(source, args)
            case ast.Call(func=ast.Name() as function, args=args, keywords=[]) if (
                function.id in PLAIN_TYPES | {"len", "repr"}
            ):
                is_length = function.id == "len"
                return self._names.is_builtin(source, function) and self._are_shown(
                    source, args, of_any_size=is_length
                )
        return self._is_of_host(source, node)

    def _is_of_host(self, source: Source, node: ast.expr) -> bool:
        """Is it simple, and takes its result no memory of a card?"""

        def is_of_host(each: ast.expr) -> bool:
            return self._is_of_host(source, each)

        match node:
            case ast.Constant():
                return True
            case ast.JoinedStr(values=values):
                return self._are_simple(source, values)
            case ast.Name():
                variables = source.variables
                bindings = variables.bindings[variables.of(node)]
                return bool(bindings) and all(self._gets_number(source, each) for each in bindings)
            case ast.Attribute(value=ast.Name(), attr=name):
                if name in self._asked:
                    return True  # as far as it depends on itself
                self._asked.add(name)
                try:
                    return self._has_only_host(source, node)
                finally:
                    self._asked.discard(name)
            case ast.Tuple(elts=values) | ast.List(elts=values) | ast.Dict(values=values):
                return self.is_simple(source, node) and all(map(is_of_host, values))
            case ast.UnaryOp(operand=of):
                return not self.program.has_operators and is_of_host(of)
            case ast.BinOp(left=left, right=right):
                return not self.program.has_operators and is_of_host(left) and is_of_host(right)
            case (
                ast.DictComp(value=value, generators=[each])
                | ast.ListComp(elt=value, generators=[each])
            ):
                of_tensors = self._is_states(each.iter) and self._are_of_names(each)
                return of_tensors and is_of_host(value)
            case ast.Call(func=ast.Attribute(attr=name, value=of), args=args, keywords=[]) if (
                name in ON_HOST and not args
            ) or name == "to":
                is_copied = name in TO_HOST or (
                    len(args) == 1 and isinstance(args[0], ast.Constant) and args[0].value == "cpu"
                )
                return not self.program.defines(name) and (
                    self.is_simple(source, of) and not self._may_have_gaps(source, of)
                    if is_copied
                    else not args and is_of_host(of)
                )
            case ast.Call(func=function, args=args, keywords=[]):
                full = self._names.imported(source, function)
                module, _, name = full.rpartition(".")
                if module in PURE and name in PURE[module]:
                    return self._names.is_foreign(module) and self._are_simple(source, args)
                is_round = name_of(function) in ("round", "abs", "min", "max", "sum")
                if is_round and self._names.is_builtin(source, function):
                    return all(map(is_of_host, args))
                return self._names.is_number(source, node) and self._are_simple(source, args)
        return False


def branches_around(frame: FrameType) -> Branches | None:
    """Of the program that `frame` belongs to; None if it may reach variables without names."""
    program = program_around(frame)
    return None if program.reflects else Branches(program, Names(program))


def value_of(source: Source, target: ast.AST) -> ast.expr | None:
    """The expression that an assignment stores in a target; None if it is not known."""
    place: list[int] = []
    at, parent = target, source.parents[target]
    while isinstance(parent, ast.Tuple | ast.List):
        place.insert(0, next(i for i, each in enumerate(parent.elts) if each is at))
        at, parent = parent, source.parents[parent]
    value = getattr(parent, "value", None)
    if not isinstance(parent, ast.Assign | ast.AnnAssign | ast.NamedExpr):
        return None
    for index in place:
        elements = getattr(value, "elts", [])
        if index >= len(elements) or any(isinstance(each, ast.Starred) for each in elements):
            return None
        value = elements[index]
    return value if isinstance(value, ast.expr) else None


def _parts(targets: Iterable[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from _parts(target.elts)
        else:
            yield target


def _is_plain_target(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) or (
        isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)
    )


def _is_counter(names: Names, source: Source, binding: ast.AST) -> bool:
    """Is it the variable of a loop over numbers, or a parameter that is annotated as one?"""
    at, parent = binding, source.parents[binding]
    name = "range"
    match binding:
        case ast.arg(annotation=ast.Name(id=kind)):
            return kind in PLAIN_TYPES
    if isinstance(parent, ast.Tuple) and parent.elts[0] is binding:
        at, parent, name = parent, source.parents[parent], "enumerate"
    match parent:
        case ast.For(target=target, iter=ast.Call(func=ast.Name(id=called) as function)):
            return target is at and called == name and names.is_builtin(source, function)
    return False


def prints(program: Program, call: ast.Call) -> bool:
    """Does this call of `print` only print?"""
    return not program.changes_output and all(
        each.arg in ("sep", "end", "flush")
        or (each.arg == "file" and text_of(each.value) in ("sys.stdout", "sys.stderr"))
        for each in call.keywords
    )


def shows(program: Program, names: Names, source: Source, method: ast.Attribute) -> bool:
    """Is it a method of a progress bar, a writer or a logger, which only shows its arguments?"""
    if method.attr in SHOWS:
        return not program.changes_bars
    return (
        method.attr in LOGGERS
        and not program.changes_logging
        and names.is_made_by(source, method.value, LOGGERS[method.attr])
    )
