"""Finds the kinds of a device's blocks, as far as the program's own objects tell them.

Parameters and buffers belong to modules, gradients to their parameters, optimizer state to
optimizers, activations to tensors that autograd saved, the KV cache to `transformers`. This module
allocates no device memory and runs no hook of the program.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache, wraps
from typing import Any

from ferro_alloc._import_hook import AfterImport

MOST_NODES = 200_000
"""Maximum number of visited nodes of one autograd graph."""
SHARE_OF_TIME = 0.05
"""Maximum share of the program's time for the search, unless the caller insists."""
SLACK_S = 0.2
"""Additional time for the search, for short programs."""


class _Seen:
    """Objects, as long as others hold them. Each is one of its own, whatever its class compares."""

    def __init__(self) -> None:
        self._held: dict[int, weakref.ref[Any]] = {}

    def add(self, seen: Any) -> None:
        key = id(seen)
        self._held[key] = weakref.ref(seen, lambda gone: self._held.pop(key, None))

    def live(self) -> list[Any]:
        found = [held() for held in list(self._held.values())]
        return [each for each in found if each is not None]


class Kinds:
    """The program's objects, and the kinds of their blocks. Thread-safe only by the GIL."""

    def __init__(self, torch: Any, declare: Callable[[int, list[int], str], None]) -> None:
        self._torch = torch
        self._declare = declare
        self._modules = _Seen()
        self._optimizers = _Seen()
        self._began = time.monotonic()
        self._spent = 0.0
        module = torch.nn.modules.module
        module.register_module_parameter_registration_hook(self._see_module)
        module.register_module_buffer_registration_hook(self._see_module)
        self._watch_copies(module.Module)
        AfterImport("transformers.cache_utils", self._watch_caches).arm()

    def _see_module(self, module: Any, name: str, tensor: Any) -> None:
        self._modules.add(module)

    def see_optimizer(self, optimizer: Any) -> None:
        self._optimizers.add(optimizer)

    def say_all(self, roots: Iterable[Any] | None = None, insist: bool = False) -> None:
        """Reports the kinds of all live objects; with `roots`, tensors, also what their graphs
        saved."""
        began = time.monotonic()
        if not insist and self._spent > SHARE_OF_TIME * (began - self._began) + SLACK_S:
            return
        if insist:
            self._find_modules()
        groups: list[tuple[str, Iterable[Any]]] = [
            ("parameters", self._parameters()),
            ("buffers", self._buffers()),
            ("optimizer", self._states()),
            ("gradients", (p.grad for p in self._parameters())),
        ]
        if roots is not None:
            groups.append(("activations", self._saved(roots)))
        for kind, tensors in groups:
            self.declare(kind, tensors)
        self._spent += time.monotonic() - began

    def declare(self, kind: str, tensors: Iterable[Any]) -> None:
        found: dict[int, list[int]] = defaultdict(list)
        for tensor in tensors:
            for device, address in self._storages(tensor):
                found[device].append(address)
        for device, addresses in found.items():
            self._declare(device, addresses, kind)

    def roots(self) -> list[Any]:
        """Returns all tensors that autograd made. Visits every object of the process."""
        tensor = self._torch.Tensor
        return [o for o in gc.get_objects() if issubclass(type(o), tensor) and _has_graph(o)]

    def _watch_copies(self, module: Any) -> None:
        """A copy, by `copy` or from a file, registers nothing: it gets the dictionaries of another
        module."""
        original, see = module.__setstate__, self._modules.add

        @wraps(original)
        def set_state(copy: Any, state: Any) -> None:
            original(copy, state)
            see(copy)

        module.__setstate__ = set_state

    def _find_modules(self) -> None:
        """Finds modules that were made in another way. Visits every object of the process."""
        module = self._torch.nn.Module
        for found in gc.get_objects():
            if issubclass(type(found), module):
                self._modules.add(found)

    def _all_modules(self) -> Iterator[Any]:
        """The known modules, and those in them."""
        left = self._modules.live()
        seen = {id(module) for module in left}
        while left:
            module = left.pop()
            yield module
            for inner in _values(module, "_modules"):
                if id(inner) not in seen:
                    seen.add(id(inner))
                    left.append(inner)

    def _parameters(self) -> Iterator[Any]:
        for module in self._all_modules():
            yield from _values(module, "_parameters")
        for optimizer in self._optimizers.live():
            for group in optimizer.param_groups:
                yield from group["params"]

    def _buffers(self) -> Iterator[Any]:
        for module in self._all_modules():
            yield from _values(module, "_buffers")

    def _states(self) -> Iterator[Any]:
        for optimizer in self._optimizers.live():
            for state in list(optimizer.state.values()):
                if isinstance(state, dict):
                    yield from list(state.values())

    def _storages(self, tensor: Any) -> Iterator[tuple[int, int]]:
        """(device, address) of each storage on a GPU behind a tensor."""
        if not issubclass(type(tensor), self._torch.Tensor):
            return
        try:
            if hasattr(tensor, "__tensor_flatten__"):
                for name in tensor.__tensor_flatten__()[0]:
                    yield from self._storages(getattr(tensor, name))
            elif tensor.is_cuda:
                yield tensor.device.index, tensor.untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError):
            return  # a fake or freed tensor has no storage

    def _saved(self, roots: Iterable[Any]) -> Iterator[Any]:
        nodes = [root.grad_fn for root in roots if _has_graph(root)]
        seen = set(nodes)
        while nodes and len(seen) < MOST_NODES:
            node = nodes.pop()
            kind: Any = type(node)
            for name in _raw_saved(kind):
                yield from _without_hooks(node, name)
            for following, _ in node.next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    nodes.append(following)

    def _watch_caches(self, module: Any) -> None:
        """`update` of a cache of transformers returns the tensors that the cache holds."""
        original = module.Cache.update
        torch, kinds = self._torch, self

        def update(cache: Any, *arguments: Any, **named: Any) -> Any:
            held = original(cache, *arguments, **named)
            if not torch.compiler.is_compiling() and isinstance(held, tuple):
                kinds.declare("kv_cache", held)
            return held

        module.Cache.update = update


def _values(module: Any, name: str) -> list[Any]:
    """Those of a dictionary of the module, which an incomplete module does not have. Calls nothing
    of the program."""
    held = object.__getattribute__(module, "__dict__").get(name)
    return [] if held is None else [value for value in held.values() if value is not None]


def _has_graph(tensor: Any) -> bool:
    try:
        return tensor.grad_fn is not None
    except (RuntimeError, AttributeError):
        return False


@cache
def _raw_saved(node: Any) -> tuple[str, ...]:
    return tuple(name for name in dir(node) if name.startswith("_raw_saved_"))


def _without_hooks(node: Any, name: str) -> Iterator[Any]:
    """Yields the saved tensors, except packed ones: unpacking them runs hooks."""
    try:
        found = getattr(node, name)
        for saved in found if isinstance(found, tuple | list) else (found,):
            if saved is not None and saved.unpack_hook is None:
                yield saved.data
    except (RuntimeError, AttributeError):
        return  # already freed
