"""Which names of a file are the same variable: Python's rules of scopes.

Default values, decorators and the first iterable of a comprehension belong to the scope around.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
PARTS = (ast.expr, ast.comprehension, ast.keyword)
NO_NODES = {"id", "ctx", "op", "ops", "attr", "arg", "kind", "conversion", "level", "module"}
"""Fields that are no nodes, or one object for all of a kind."""
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {ast.Constant: ()}
"""The fields of each kind of nodes that may be nodes."""
Variable = tuple[ast.AST, str]
"""The scope that binds a name, and the name."""


class Variables:
    """The variables of a file.

    Each node is visited once, from the outermost on: what is around a node is not looked for from
    the node, for branches and expressions may lie deep.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.parents: dict[ast.AST, ast.AST] = {}
        """In the order of `ast.walk`."""
        self.functions: dict[ast.AST, ast.AST] = {tree: tree}
        """The innermost function of each node, or the module. A function is its own."""
        self.tops: dict[ast.AST, ast.AST] = {}
        """Of each part of an expression, the outermost one in its statement or lambda."""
        self.bindings: defaultdict[Variable, list[ast.AST]] = defaultdict(list)
        """Targets, arguments, imports, definitions, handlers and patterns."""
        self.loads: defaultdict[Variable, list[ast.Name]] = defaultdict(list)
        self.named: defaultdict[str, list[ast.AST]] = defaultdict(list)
        """Definitions, imports, handlers and patterns, by their names."""
        self.has_star_import = False
        self._tree = tree
        self._scopes: dict[ast.AST, ast.AST] = {tree: tree}
        self._bound: defaultdict[ast.AST, set[str]] = defaultdict(set)
        self._found: dict[ast.Name, Variable] = {}
        self._declared: dict[Variable, bool] = {}
        """Names that are global (True) or nonlocal in a scope."""
        self._add_nodes()
        found: list[tuple[ast.AST, str, ast.AST]] = []
        loads: list[ast.Name] = []
        for node in self.parents:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                loads.append(node)
                continue
            if isinstance(node, ast.Global | ast.Nonlocal):
                for name in node.names:
                    self._declared[self.scope(node), name] = isinstance(node, ast.Global)
            if isinstance(node, ast.expr) and not isinstance(node, ast.Name):
                continue
            for name in _names(node):
                found.append((self._home(node), name, node))
            if isinstance(own := getattr(node, "name", None), str):
                self.named[own].append(node)
        for scope, name, _ in found:
            if (scope, name) not in self._declared:
                self._bound[scope].add(name)
        for scope, name, node in found:
            if name == "*":
                self.has_star_import = True
            variable = self._resolved(scope, name)
            if not isinstance(node, ast.Name):
                self.bindings[variable].append(node)
            elif isinstance(node.ctx, ast.Store):
                self.bindings[variable].append(node)
                self._found[node] = variable
        for node in loads:
            scope = self._scopes[node]
            self._found[node] = variable = self._resolved(scope, node.id)
            self.loads[variable].append(node)
            if isinstance(scope, ast.ClassDef) and node.id in self._bound[scope]:
                self.loads[self._resolved(scope, node.id, True)].append(node)

    def _add_nodes(self) -> None:
        scopes, functions, tops, parents = self._scopes, self.functions, self.tops, self.parents
        nodes: list[ast.AST] = [self._tree]
        for node in nodes:
            kind = type(node)
            if kind not in _FIELDS:
                _FIELDS[kind] = tuple(each for each in kind._fields if each not in NO_NODES)
            fields = _FIELDS[kind]
            if not fields:
                continue
            around, function = scopes[node], functions[node]
            inside = ""
            """The field whose nodes are in another scope."""
            scope = node
            if isinstance(node, (*DEFINITIONS, ast.Lambda)):
                inside = "body"
            elif isinstance(node, COMPREHENSIONS):
                around = node
            elif isinstance(node, ast.comprehension):
                of = parents[node]
                if of.generators[0] is node:  # type: ignore[attr-defined]
                    inside, scope = "iter", scopes[of]
            is_part = isinstance(node, PARTS) and not isinstance(node, ast.Lambda)
            top = tops[node] if is_part else None
            for field in fields:
                value = getattr(node, field)
                of_field = scope if field == inside else around
                for child in value if isinstance(value, list) else (value,):
                    if isinstance(child, ast.AST):
                        nodes.append(child)
                        parents[child] = node
                        scopes[child] = of_field
                        functions[child] = child if isinstance(child, FUNCTIONS) else function
                        tops[child] = top or child

    def of(self, name: ast.Name) -> Variable:
        """The variable that a name loads or stores."""
        found = self._found.get(name)
        return self._resolved(self.scope(name), name.id) if found is None else found

    def of_definition(self, node: ast.AST) -> Variable:
        """The variable of a function or class of this name."""
        name: str = node.name  # type: ignore[attr-defined]
        return self._resolved(self.scope(node), name)

    def scope(self, node: ast.AST) -> ast.AST:
        """The innermost scope in which a node is evaluated: a function, class, comprehension or the
        module."""
        return self._scopes[node]

    def _home(self, node: ast.AST) -> ast.AST:
        """The scope in which a node binds a name."""
        parent = self.parents[node]
        if isinstance(node, ast.arg):
            return self.parents[parent]
        scope = self.scope(node)
        if isinstance(parent, ast.NamedExpr) and parent.target is node:
            while isinstance(scope, COMPREHENSIONS):
                scope = self.scope(scope)
        return scope

    def _resolved(self, scope: ast.AST, name: str, skip: bool = False) -> Variable:
        is_first = not skip
        while scope is not self._tree:
            declared = self._declared.get((scope, name))
            if declared is True:
                return self._tree, name
            is_seen = is_first or not isinstance(scope, ast.ClassDef)
            if declared is None and is_seen and name in self._bound[scope]:
                break
            is_first = False
            scope = self._scopes[scope]
        return scope, name


def _names(node: ast.AST) -> Iterator[str]:
    """The names that a node itself binds or deletes."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.arg(arg=name):
            yield name
        case ast.alias():
            yield imported(node)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.ExceptHandler(name=str(name)):
            yield name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name


def imported(node: ast.alias) -> str:
    """The name that an import binds."""
    return node.asname or node.name.partition(".")[0]
