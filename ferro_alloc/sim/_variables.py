"""Which names of a file are the same variable: Python's rules of scopes.

`Source.binder` says it roughly, which may lose a load. Here no load of a variable is lost: default
values, decorators and the first iterable of a comprehension belong to the scope around.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from ferro_alloc.sim._sources import COMPREHENSIONS, DEFINITIONS, Source

Variable = tuple[ast.AST, str]
"""The scope that binds a name, and the name."""


class Variables:
    """The variables of a file."""

    def __init__(self, source: Source) -> None:
        self._parents = source.parents
        self._bodies = {
            line for node in source.parents if isinstance(node, DEFINITIONS) for line in node.body
        }
        self.bindings: defaultdict[Variable, list[ast.AST]] = defaultdict(list)
        """Targets, arguments, imports, definitions, handlers and patterns."""
        self.loads: defaultdict[Variable, list[ast.Name]] = defaultdict(list)
        self.has_star_import = False
        self._bound: defaultdict[ast.AST, set[str]] = defaultdict(set)
        self._found: dict[ast.Name, Variable] = {}
        """What `of` has found, for branches may lie deep."""
        self._declared: dict[Variable, bool] = {}
        """Names that are global (True) or nonlocal in a scope."""
        found: list[tuple[ast.AST, str, ast.AST]] = []
        for node in source.parents:
            if isinstance(node, ast.Global | ast.Nonlocal):
                for name in node.names:
                    self._declared[self.scope(node), name] = isinstance(node, ast.Global)
            for name in _names(node):
                found.append((self._home(node), name, node))
        for scope, name, _ in found:
            if (scope, name) not in self._declared:
                self._bound[scope].add(name)
        for scope, name, node in found:
            if name == "*":
                self.has_star_import = True
            if not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del)):
                self.bindings[self._resolved(scope, name)].append(node)
        for node in source.parents:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                scope = self.scope(node)
                self.loads[self._resolved(scope, node.id)].append(node)
                if isinstance(scope, ast.ClassDef) and node.id in self._bound[scope]:
                    self.loads[self._resolved(scope, node.id, True)].append(node)

    def of(self, name: ast.Name) -> Variable:
        """The variable that a name loads or stores."""
        if name not in self._found:
            stores = isinstance(name.ctx, ast.Store)
            scope = self._home(name) if stores else self.scope(name)
            self._found[name] = self._resolved(scope, name.id)
        return self._found[name]

    def of_definition(self, node: ast.AST) -> Variable:
        """The variable of a function or class of this name."""
        name: str = node.name  # type: ignore[attr-defined]
        return self._resolved(self.scope(node), name)

    def scope(self, node: ast.AST) -> ast.AST:
        """The innermost scope in which a node is evaluated: a function, class, comprehension or the
        module."""
        before, below, at = node, node, self._parents[node]
        while not isinstance(at, ast.Module):
            if isinstance(at, COMPREHENSIONS):
                first = at.generators[0]
                if not (below is first and before is first.iter):
                    return at
            elif isinstance(at, DEFINITIONS):
                if below in self._bodies:
                    return at
            elif isinstance(at, ast.Lambda) and below is at.body:
                return at
            before, below, at = below, at, self._parents[at]
        return at

    def _home(self, node: ast.AST) -> ast.AST:
        """The scope in which a node binds a name."""
        parent = self._parents[node]
        if isinstance(node, ast.arg):
            return self._parents[parent]
        scope = self.scope(node)
        if isinstance(parent, ast.NamedExpr) and parent.target is node:
            while isinstance(scope, COMPREHENSIONS):
                scope = self.scope(scope)
        return scope

    def _resolved(self, scope: ast.AST, name: str, skip: bool = False) -> Variable:
        is_first = not skip
        while not isinstance(scope, ast.Module):
            declared = self._declared.get((scope, name))
            if declared is True:
                while not isinstance(scope, ast.Module):
                    scope = self._parents[scope]
                break
            is_seen = is_first or not isinstance(scope, ast.ClassDef)
            if declared is None and is_seen and name in self._bound[scope]:
                break
            is_first = False
            scope = self.scope(scope)
        return scope, name


def _names(node: ast.AST) -> Iterator[str]:
    """The names that a node itself binds or deletes."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.arg(arg=name):
            yield name
        case ast.alias(name=name, asname=asname):
            yield asname or name.partition(".")[0]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.ExceptHandler(name=str(name)):
            yield name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name


_known: dict[Source, Variables] = {}


def variables_of(source: Source) -> Variables:
    if source not in _known:
        _known[source] = Variables(source)
    return _known[source]
