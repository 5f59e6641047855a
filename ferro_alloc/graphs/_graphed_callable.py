"""A callable that runs as a graph: it replays one captured call on the inputs of each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ferro_alloc._errors import FerroError
from ferro_alloc.graphs._capture import CaptureGuard, CaptureMode, _side_stream
from ferro_alloc.graphs._captured_graph import CapturedGraph
from ferro_alloc.graphs._pools import PoolLike
from ferro_alloc.graphs._streams import check_stream, require_device

if TYPE_CHECKING:
    import torch


Inputs = tuple[tuple[Any, ...], dict[str, Any]]


class GraphedCallable:
    """Copies the tensors of its arguments into the graph's inputs, launches the graph on the
    current stream, and returns the graph's outputs: the same tensors each time, which the next call
    overwrites. `make_graphed_callable()` creates it.
    """

    def __init__(
        self, function: Callable[..., Any], graph: CapturedGraph, inputs: Inputs, outputs: Any
    ) -> None:
        self._function = function  # also keeps objects that it refers to, such as parameters
        self._graph = graph
        self._leaves, self._structure = _flat(inputs)
        self._outputs = outputs
        graph.keep((function, inputs))

    @property
    def graph(self) -> CapturedGraph:
        return self._graph

    def __repr__(self) -> str:
        named = self._function if hasattr(self._function, "__qualname__") else type(self._function)
        return f"<GraphedCallable {named.__qualname__}, {self._graph!r}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The arguments must have the structure, shapes and types of the samples; arguments that
        are not tensors must equal them. Raises `FerroError` otherwise, and launches nothing."""
        import torch

        leaves, structure = _flat((args, kwargs))
        if structure != self._structure:
            raise FerroError(f"the arguments are {structure}: expected {self._structure}")
        for number, (given, captured) in enumerate(zip(leaves, self._leaves, strict=True)):
            _check(number, given, captured)
        with torch.no_grad():
            for given, captured in zip(leaves, self._leaves, strict=True):
                if _is_tensor(captured) and given is not captured:
                    captured.copy_(given, non_blocking=True)
        self._graph.launch(torch.cuda.current_stream(self._graph.device))
        return self._outputs


def make_graphed_callable(
    function: Callable[..., Any],
    sample_args: Sequence[Any],
    sample_kwargs: Mapping[str, Any] | None = None,
    *,
    num_warmup_iters: int = 3,
    pool: PoolLike | None = None,
    stream: torch.cuda.Stream | None = None,
    capture_error_mode: CaptureMode | str = CaptureMode.THREAD_LOCAL,
) -> GraphedCallable:
    """Captures `function(*sample_args, **sample_kwargs)` after `num_warmup_iters=3` calls of it.

    All calls are on `stream`, or on a side stream of this thread.
    The tensors among the samples, including nested ones, become the graph's inputs: later calls
    copy into them. Gradients do not flow through the graph, and its results have no gradient
    function; `torch.cuda.make_graphed_callables` supports gradients and takes the same handles.
    `pool`, `stream` and `capture_error_mode` are those of `begin_capture()`. An error of `function`
    discards the capture and propagates. Raises `FerroError` without a device, for a tensor that is
    not on one, if no sample is on the device of the capture, and for other arguments.
    """
    require_device("make_graphed_callable()")
    if not callable(function):
        raise FerroError(
            f"make_graphed_callable({function!r}, ...): expected a function first, and then a "
            "sequence of its sample arguments; pass a stream as stream=, and a mode as "
            "capture_error_mode="
        )
    if not isinstance(sample_args, Sequence) or isinstance(sample_args, str):
        raise FerroError(
            f"sample_args is {sample_args!r}: expected a sequence, such as the tuple of the sample "
            "arguments"
        )
    if not isinstance(sample_kwargs, Mapping | None):
        raise FerroError(f"sample_kwargs is {sample_kwargs!r}: expected a mapping, or None")
    args, kwargs = tuple(sample_args), dict(sample_kwargs or {})
    samples = _flat((args, kwargs))[0]
    for number, sample in enumerate(samples):
        if _is_tensor(sample) and not sample.is_cuda:
            raise FerroError(
                f"sample {number} is a tensor on {sample.device}: expected CUDA tensors, because "
                "a graph never reads others again; move it there, or pass a number"
            )
    stream = check_stream(stream) or _side_stream()
    devices = {sample.device.index for sample in samples if _is_tensor(sample)}
    if devices and stream.device_index not in devices:
        # The function would run there, outside the capture, which would be empty.
        raise FerroError(
            f"the samples are on device {min(devices)}, and the capture is on device "
            f"{stream.device_index}: make their device current, or pass a stream of it as stream="
        )
    warm_up(lambda: function(*args, **kwargs), num_warmup_iters, stream)
    with CaptureGuard(pool, stream=stream, capture_error_mode=capture_error_mode) as guard:
        outputs = _without_gradients(function(*args, **kwargs))
    return GraphedCallable(function, guard.graph, (args, kwargs), outputs)


def warm_up(call: Callable[[], Any], count: int, stream: torch.cuda.Stream) -> None:
    """Calls it `count` times on `stream`, after earlier and before later work of the current
    one."""
    import torch

    if not isinstance(count, int) or count < 0:
        raise FerroError(f"num_warmup_iters is {count!r}: expected a number of calls, 0 or more")
    before = torch.cuda.current_stream()
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        for _ in range(count):
            call()
    before.wait_stream(stream)


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _without_gradients(outputs: Any) -> Any:
    """Returns tensors of the same memory."""
    import torch
    from torch.utils import _pytree

    return _pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, outputs)


def _flat(values: Inputs) -> tuple[list[Any], Any]:
    from torch.utils import _pytree

    args, kwargs = values
    # Keyword arguments may come in any order.
    leaves, structure = _pytree.tree_flatten((args, dict(sorted(kwargs.items()))))
    return leaves, structure


def _check(number: int, given: Any, captured: Any) -> None:
    if not _is_tensor(captured):
        if _is_tensor(given) or given != captured:
            raise FerroError(f"argument {number} is {given!r}: expected {captured!r}, as captured")
        return
    if not _is_tensor(given):
        raise FerroError(f"argument {number} is {given!r}: expected a tensor, as captured")
    if given.shape != captured.shape or given.dtype != captured.dtype:
        raise FerroError(
            f"argument {number} has shape {tuple(given.shape)} and type {given.dtype}: expected "
            f"{tuple(captured.shape)} and {captured.dtype}, as captured"
        )
