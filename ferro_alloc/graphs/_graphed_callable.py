"""A callable that runs as a graph: what it did once, on the inputs of each call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ferro_alloc._errors import FerroError
from ferro_alloc.graphs._capture import CaptureGuard, CaptureMode, _side_stream
from ferro_alloc.graphs._captured_graph import CapturedGraph
from ferro_alloc.graphs._pools import PoolLike
from ferro_alloc.graphs._streams import require_device


class GraphedCallable:
    """Copies the tensors of its arguments into the graph's inputs, launches the graph on the
    current stream, and returns the graph's outputs: the same tensors each time, which the next call
    overwrites. `make_graphed_callable()` makes them.
    """

    def __init__(
        self, function: Callable[..., Any], graph: CapturedGraph, inputs: tuple[Any, ...], out: Any
    ) -> None:
        self._function = function  # and what it refers to, such as parameters
        self._graph = graph
        self._leaves, self._structure = _flat(inputs)
        self._outputs = out
        graph.keep((function, inputs))

    @property
    def graph(self) -> CapturedGraph:
        return self._graph

    def __call__(self, *args: Any) -> Any:
        """The arguments have the structure, shapes and types of the samples, and equal to them
        what is no tensor. Raises `FerroError` otherwise, and launches nothing."""
        leaves, structure = _flat(args)
        if structure != self._structure:
            raise FerroError(f"the arguments are {structure}: captured were {self._structure}")
        for number, (given, captured) in enumerate(zip(leaves, self._leaves, strict=True)):
            _check(number, given, captured)
        for given, captured in zip(leaves, self._leaves, strict=True):
            if _is_tensor(captured) and given is not captured:
                captured.copy_(given, non_blocking=True)
        self._graph.launch()
        return self._outputs


def make_graphed_callable(
    function: Callable[..., Any],
    sample_args: Sequence[Any],
    *,
    pool: PoolLike | None = None,
    mode: CaptureMode | str = CaptureMode.THREAD_LOCAL,
    warmup: int = 3,
) -> GraphedCallable:
    """Captures `function(*sample_args)` after `warmup` calls on a side stream.

    The tensors among `sample_args`, nested ones too, become the graph's inputs: later calls copy
    into them. Gradients do not flow through the graph; `torch.cuda.make_graphed_callables`, which
    takes the same handles, does that. `pool` and `mode` are those of `begin_capture()`. An error of
    `function` discards the capture and goes on. Raises `FerroError` without a device.
    """
    require_device("make_graphed_callable()")
    import torch

    if warmup < 0:
        raise FerroError(f"warmup is {warmup}: expected a number of calls, 0 or more")
    args = tuple(sample_args)
    stream, before = _side_stream(), torch.cuda.current_stream()
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        for _ in range(warmup):
            function(*args)
    before.wait_stream(stream)
    with CaptureGuard(pool, mode=mode, stream=stream) as guard:
        out = function(*args)
    return GraphedCallable(function, guard.graph, args, out)


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _flat(values: tuple[Any, ...]) -> tuple[list[Any], Any]:
    from torch.utils import _pytree

    leaves, structure = _pytree.tree_flatten(values)
    return leaves, structure


def _check(number: int, given: Any, captured: Any) -> None:
    if not _is_tensor(captured):
        if _is_tensor(given) or given != captured:
            raise FerroError(f"argument {number} is {given!r}: captured was {captured!r}")
        return
    if not _is_tensor(given):
        raise FerroError(f"argument {number} is {given!r}: captured was a tensor")
    if given.shape != captured.shape or given.dtype != captured.dtype:
        raise FerroError(
            f"argument {number} has shape {tuple(given.shape)} and type {given.dtype}: captured "
            f"were {tuple(captured.shape)} and {captured.dtype}"
        )
