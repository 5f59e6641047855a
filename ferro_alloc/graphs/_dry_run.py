"""Planning: captures that are made, measured and discarded."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from ferro_alloc._errors import FerroError
from ferro_alloc._segments import segments
from ferro_alloc.allocator import is_installed, settings
from ferro_alloc.graphs._capture import (
    CaptureGuard,
    CaptureMode,
    _is_in_capture,
    _side_stream,
    checked_mode,
)
from ferro_alloc.graphs._captured_graph import CapturedGraph
from ferro_alloc.graphs._exclusive import exclusive
from ferro_alloc.graphs._graphed_callable import GraphedCallable, warm_up
from ferro_alloc.graphs._groups import exclusive_groups
from ferro_alloc.graphs._plan import (
    POOLS,
    UNSHARED,
    Plan,
    PlannedCapture,
    PlannedSet,
    Pools,
    reserved_without_gaps,
)
from ferro_alloc.graphs._pools import (
    PoolHandle,
    graph_pool_handle,
    name_of,
    pool_of,
    release_graph_pool_handle,
)
from ferro_alloc.graphs._sizes import pool_sizes
from ferro_alloc.graphs._streams import check_stream, require_device

if TYPE_CHECKING:
    from types import ModuleType

    import torch

_LONGEST_NAME = 40


def plan(
    captures: Any,
    sample_args: Iterable[Any] | None = None,
    *,
    pools: Iterable[Pools] | None = None,
    num_warmup_iters: int = 1,
    stream: torch.cuda.Stream | None = None,
    capture_error_mode: CaptureMode | str = CaptureMode.THREAD_LOCAL,
) -> Plan:
    """Returns the memory that captures would take of the device, from a dry run.

    `captures` is a callable. `sample_args` has its arguments for each capture, as a tuple or a
    single value, in the order of the captures; None: one capture without arguments. After
    `num_warmup_iters` calls each is captured alone, which needs the memory of the largest. For
    arrangements of `pools` other than "separate" all are captured once more and held together,
    which needs the memory of the arrangement. Without that much memory it is estimated. The default
    arrangements are "separate", "shared" and "exclusive", in which the pools join a group before
    their captures; with `layout` or `graph_layout` segments the first two.

    Afterwards memory, streams, pools and PyTorch's random numbers are as before, and the cache is
    empty. Memory that the callable keeps stays (`Plan.kept_bytes`), and so do its other effects. If
    another thread allocates meanwhile, its memory may be counted too.

    `captures` may also be existing graphs: a `CapturedGraph`, a `torch.cuda.CUDAGraph`, a
    `GraphedCallable`, or any number of them. Then nothing is captured. "separate" is the memory of
    their pools, and "exclusive" that of a group that they would join.

    `stream` and `capture_error_mode` are those of `begin_capture()`. Errors of the callable
    propagate after the same cleanup. Raises `FerroError` while ferro_alloc is not installed, during
    a capture, for graphs of a group, and for other arguments.
    """
    extension = _require()
    if callable(captures) and not isinstance(captures, GraphedCallable):
        default: tuple[Pools, ...] = ("separate", "shared", *_exclusive())
        wanted = _checked(pools, tuple(POOLS), default=default)
        mode = checked_mode(capture_error_mode)
        dry_run = _DryRun(captures, _calls(sample_args), check_stream(stream), mode)
        return dry_run.plan(wanted, num_warmup_iters)
    if sample_args is not None:
        raise FerroError("graphs take no sample_args: expected a callable, or graphs alone")
    joined: tuple[Pools, ...] = ("separate", "exclusive")
    default = ("separate", *_exclusive())
    return _plan_graphs(extension, _graphs(captures), _checked(pools, joined, default=default))


def _exclusive() -> tuple[Pools, ...]:
    """Empty if pools come from PyTorch's own allocator, because those form no group."""
    chosen = settings()
    native = chosen is not None and "segments" in (chosen.layout, chosen.graph_layout)
    return () if native else ("exclusive",)


@dataclass
class _Capture:
    graph: CapturedGraph
    results: Any


@dataclass(frozen=True)
class _Taken:
    """Memory of captures that are held together."""

    reserved: int
    driver: list[int]
    """The driver's own memory for each capture."""


class _DryRun:
    def __init__(
        self,
        function: Callable[..., Any],
        calls: Sequence[tuple[Any, ...]],
        stream: torch.cuda.Stream | None,
        mode: CaptureMode,
    ) -> None:
        self._function = function
        self._calls = calls
        self._stream = stream or _side_stream()
        self._device = self._stream.device_index
        self._mode = mode
        if _is_in_capture() or _is_in_capture(self._stream):
            raise FerroError("a capture is running: plan before it or after it")

    def plan(self, wanted: Sequence[Pools], num_warmup_iters: int) -> Plan:
        import torch

        before = torch.cuda.memory_allocated(self._device)
        together: dict[Pools, _Taken] = {}
        try:
            with torch.random.fork_rng(devices=[self._device]):
                for args in self._calls:
                    warm_up(partial(self._function, *args), num_warmup_iters, self._stream)
                alone = [self._alone(args) for args in self._calls]
                for pools in wanted:
                    taken = None if pools == "separate" else self._together(pools)
                    if taken is not None:
                        together[pools] = taken
        finally:
            self._reserved()
        captures = [capture for capture, _ in alone]
        # When captured alone, each graph may reuse the driver's memory of the previous one.
        driver = next(
            (taken.driver for taken in together.values()),
            [capture.driver_bytes for capture in captures],
        )
        captures = [
            replace(capture, driver_bytes=own)
            for capture, own in zip(captures, driver, strict=True)
        ]
        config = settings()
        assert config is not None
        shares = config.layout == config.graph_layout == "pages"
        beside = max(beside for _, beside in alone)
        sets: dict[Pools, PlannedSet] = {}
        for pools in wanted:
            reserved = beside + reserved_without_gaps(
                captures, pools if shares else UNSHARED[pools], config.page_size_bytes
            )
            if pools in together:
                reserved = together[pools].reserved
            is_measured = pools in together or pools == "separate"
            sets[pools] = PlannedSet(pools, reserved, sum(driver), is_measured)
        kept = max(torch.cuda.memory_allocated(self._device) - before, 0)
        return Plan(tuple(captures), sets, kept)

    def _alone(self, args: tuple[Any, ...]) -> tuple[PlannedCapture, int]:
        """Also returns the bytes reserved outside its pool as long as the graph exists."""
        before, others = self._reserved(), self._bytes_of_others()
        capture = self._capture(args, None)
        driver = self._bytes_of_others() - others
        sizes = capture.graph.sizes()
        in_pool = pool_sizes(capture.graph.memory_handle).private_bytes
        results = _result_bytes(capture)
        planned = PlannedCapture(
            _name(args),
            results_bytes=results,
            state_bytes=sizes.live_bytes - results,
            scratch_bytes=sizes.scratch_bytes,
            driver_bytes=max(driver, 0),
            reserved_bytes=in_pool,
        )
        return planned, max(self._reserved() - before - in_pool, 0)

    def _together(self, pools: Pools) -> _Taken | None:
        """Returns None if there is not enough memory."""
        import torch

        count = 1 if pools in ("shared", "exclusive shared") else len(self._calls)
        handles: list[PoolHandle] = []
        held: list[_Capture] = []
        before = self._reserved()
        try:
            handles += [graph_pool_handle("plan") for _ in range(count)]
            if pools.startswith("exclusive"):
                exclusive(*handles, name="plan")
            others = [self._bytes_of_others()]
            for number, args in enumerate(self._calls):
                held.append(self._capture(args, handles[number % count]))
                others.append(self._bytes_of_others())
            in_pools = sum(pool_sizes(handle).private_bytes for handle in handles)
            return _Taken(
                reserved=max(self._reserved() - before, in_pools),
                driver=[max(after - earlier, 0) for earlier, after in pairwise(others)],
            )
        except torch.OutOfMemoryError:
            return None
        finally:
            held.clear()
            for handle in handles:
                release_graph_pool_handle(handle)
            gc.collect()  # results may be in cycles

    def _capture(self, args: tuple[Any, ...], pool: PoolHandle | None) -> _Capture:
        with CaptureGuard(pool, stream=self._stream, capture_error_mode=self._mode) as guard:
            results = self._function(*args)
        # Without the upload the driver would take memory for the graph at its first launch.
        guard.graph.upload(self._stream)
        self._stream.synchronize()
        return _Capture(guard.graph, results)

    def _bytes_of_others(self) -> int:
        """Device memory in use that PyTorch's allocator has not reserved."""
        import torch

        free, total = torch.cuda.mem_get_info(self._device)
        return int(total - free - torch.cuda.memory_reserved(self._device))

    def _reserved(self) -> int:
        """Memory reserved by PyTorch's allocator, without its cache."""
        import torch

        self._stream.synchronize()
        torch.cuda.empty_cache()
        return int(torch.cuda.memory_reserved(self._device))


def _result_bytes(capture: _Capture) -> int:
    """Bytes of the blocks of the graph's pool that hold tensors of the results."""
    import torch
    from torch.utils import _pytree

    addresses = [
        leaf.untyped_storage().data_ptr()
        for leaf in _pytree.tree_leaves(capture.results)
        if isinstance(leaf, torch.Tensor) and leaf.is_cuda and leaf.layout == torch.strided
    ]
    # With a pool as argument, torch 2.11 releases the numbers of its handle, which it does not own.
    pool = tuple(capture.graph.memory_handle)
    return sum(
        block["size"]
        for segment in segments()
        if tuple(segment["segment_pool_id"]) == pool
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
        and any(0 <= address - block["address"] < block["size"] for address in addresses)
    )


# ---- graphs that exist


def _plan_graphs(
    extension: ModuleType, graphs: Sequence[torch.cuda.CUDAGraph], wanted: Sequence[Pools]
) -> Plan:
    found = list(dict.fromkeys(PoolHandle(graph.pool()) for graph in graphs))
    for pool in found:
        group = exclusive_groups.get(pool)
        if group is not None:
            raise FerroError(f"{pool_of(pool)} is already in {group}: call sizes() of that group")
    captures = [_of_pool(pool) for pool in found]
    apart = sum(capture.reserved_bytes for capture in captures)
    shared, scratch = extension.scratch_bytes_if_joined(found)
    bytes_of: dict[Pools, int] = {"separate": apart, "exclusive": apart - scratch + shared}
    sets = {pools: PlannedSet(pools, bytes_of[pools], 0, pools == "separate") for pools in wanted}
    return Plan(tuple(captures), sets, 0)


def _of_pool(pool: PoolHandle) -> PlannedCapture:
    sizes = pool_sizes(pool)
    return PlannedCapture(
        name_of(pool) or str(tuple(pool)),
        results_bytes=sizes.live_bytes,
        state_bytes=0,
        scratch_bytes=sizes.scratch_bytes,
        driver_bytes=0,
        reserved_bytes=sizes.private_bytes,
    )


def _graphs(captures: Any) -> list[torch.cuda.CUDAGraph]:
    import torch

    one = isinstance(captures, CapturedGraph | GraphedCallable | torch.cuda.CUDAGraph)
    if not one and not isinstance(captures, Iterable):
        raise FerroError(f"{captures!r} cannot be planned: expected a callable, or graphs")
    found = []
    for graph in [captures] if one else captures:
        inner = graph.graph if isinstance(graph, GraphedCallable) else graph
        inner = inner.cuda_graph if isinstance(inner, CapturedGraph) else inner
        if not isinstance(inner, torch.cuda.CUDAGraph):
            raise FerroError(f"{graph!r} is not a graph: expected graphs, or one callable")
        found.append(inner)
    if not found:
        raise FerroError("there is nothing to plan: expected a callable, or at least one graph")
    return found


# ---- arguments


def _require() -> ModuleType:
    extension = require_device("plan()")
    if not is_installed():
        raise FerroError(
            "plan() measures captures under ferro_alloc: call ferro_alloc.install() first"
        )
    return extension


def _checked(
    pools: Iterable[Pools] | None, known: tuple[Pools, ...], default: tuple[Pools, ...]
) -> tuple[Pools, ...]:
    if pools is None:
        return default
    wanted = [pools] if isinstance(pools, str) else list(pools)
    for name in wanted:
        if name not in known:
            expected = ", ".join(map(repr, known))
            raise FerroError(f"{name!r} is not an arrangement of pools: expected {expected}")
    return cast("tuple[Pools, ...]", tuple(dict.fromkeys(wanted)))


def _calls(sample_args: Iterable[Any] | None) -> list[tuple[Any, ...]]:
    import torch

    if sample_args is None:
        return [()]
    # A tensor would be split into rows.
    if isinstance(sample_args, torch.Tensor | str) or not isinstance(sample_args, Iterable):
        raise FerroError(
            "sample_args has the arguments of each capture: expected an iterable of tuples, as in "
            "[(tokens,)]"
        )
    calls = [args if isinstance(args, tuple) else (args,) for args in sample_args]
    if not calls:
        raise FerroError("there is nothing to plan: sample_args is empty")
    return calls


def _name(args: tuple[Any, ...]) -> str:
    import torch

    shown = (f"{list(arg.shape)}" if isinstance(arg, torch.Tensor) else str(arg) for arg in args)
    name = ", ".join(shown) or "()"
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."
