"""The debug mode: it checks each replay against the memory of the graph's capture.

While it is on, it replaces methods of `torch.cuda.CUDAGraph`. The end of a capture records the
memory that the graph uses, and a replay checks whether that memory is still allocated. When it is
off, PyTorch's own methods are in force.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ferro_alloc._errors import FerroError
from ferro_alloc.allocator import is_installed
from ferro_alloc.graphs._groups import LaunchOrder, exclusive_groups, late_pools
from ferro_alloc.graphs._misuse import Frame, GraphMisuseError, MisuseKind, own_line, warn_of
from ferro_alloc.graphs._pools import PoolHandle, name_of
from ferro_alloc.graphs._replays import check_replays
from ferro_alloc.graphs._streams import require_device

if TYPE_CHECKING:
    import torch

    from ferro_alloc import _C


@dataclass(eq=False)
class _Graph:
    """The facts about a graph, as long as it exists."""

    name: str
    pool: PoolHandle
    device: int
    uses: _C.GraphUses
    begun: int
    """The number of blocks freed before its capture began."""
    replayed: int = 0
    """The number of its last replay among those of all graphs; 0 before the first."""


class _Last:
    """The last replay of a group's graphs on one device."""

    def __init__(self, extension: ModuleType) -> None:
        self.replay: _C.LastReplay = extension.LastReplay()
        self.name = ""


class _Watch:
    """The graphs that were captured while the mode was on. Thread-safe."""

    def __init__(self, extension: ModuleType) -> None:
        self._extension = extension
        self._lock = threading.RLock()
        self._graphs: weakref.WeakKeyDictionary[torch.cuda.CUDAGraph, _Graph] = (
            weakref.WeakKeyDictionary()
        )
        self._last: weakref.WeakKeyDictionary[LaunchOrder, dict[int, _Last]] = (
            weakref.WeakKeyDictionary()
        )
        self._marks: weakref.WeakKeyDictionary[torch.cuda.CUDAGraph, tuple[int, int]] = (
            weakref.WeakKeyDictionary()
        )
        self._captures: Counter[PoolHandle] = Counter()
        self._replays = 0

    def capture_begin(self, graph: torch.cuda.CUDAGraph) -> None:
        with self._lock:
            self._marks[graph] = self._extension.freed_in_captures(), self._extension.frees()

    def capture_end(self, graph: torch.cuda.CUDAGraph, end: Callable[[Any], None]) -> None:
        import torch

        stream = torch.cuda.current_stream()
        with self._lock:
            mark, begun = self._marks.pop(graph, (0, 0))
        uses = None
        try:
            uses = self._extension.GraphUses(stream.device_index, stream.cuda_stream, mark)
        finally:
            end(graph)  # also if the driver refuses to list the nodes
        pool = PoolHandle(graph.pool())
        uses.settle(pool)
        with self._lock:
            self._captures[pool] += 1
            name = (
                f"graph {self._captures[pool]} of pool {name_of(pool) or tuple(pool)!r}, captured "
                f"at {own_line(_stack())},"
            )
            self._graphs[graph] = _Graph(name, pool, stream.device_index, uses, begun)

    def forget(self, graph: torch.cuda.CUDAGraph) -> None:
        with self._lock:
            self._graphs.pop(graph, None)

    def replay(self, graph: torch.cuda.CUDAGraph, replay: Callable[[Any], None]) -> None:
        """Raises `GraphMisuseError` instead of a replay that would use freed memory."""
        with self._lock:
            known = self._graphs.get(graph)
            if known is None:
                replay(graph)
                return
            self._check_memory(known)
            last = self._check_order(known)
            self._check_results(known)
            replay(graph)
            self._replays += 1
            known.replayed = self._replays
            if last is not None:
                last.replay.set(None, known.device)
                last.name = known.name

    def _check_memory(self, graph: _Graph) -> None:
        uses = graph.uses
        if not self._extension.is_pool_held(graph.pool):
            block = uses.largest_own(freed=False) or uses.largest_own(freed=True)
            raise GraphMisuseError(MisuseKind.DELETED_POOL, graph.name, block)
        for block in uses.asleep():
            raise GraphMisuseError(MisuseKind.ASLEEP, graph.name, block)
        for block in uses.freed_outside():
            kind = MisuseKind.FREED_WORKSPACE if block.is_workspace else MisuseKind.FREED_INPUT
            if block.pool != (0, 0) and not self._extension.is_pool_held(block.pool):
                kind = MisuseKind.DELETED_POOL
            raise GraphMisuseError(kind, graph.name, block)
        for block in uses.freed_within():
            self._check_kept(graph, block)

    def _check_kept(self, graph: _Graph, block: _C.FoundBlock) -> None:
        """Memory that another graph of the pool wrote and the program released stays intact until a
        graph replays that may have its pages."""
        others = [other for other in self._graphs.values() if other is not graph]
        writer = next((other for other in others if other.uses.made(block)), None)
        if writer is None or writer.replayed == 0:
            return
        group = exclusive_groups.get(graph.pool)
        if group is not None and self._extension.is_tree_pool(graph.pool):
            group = None  # memory that its graphs pass to one another is private to the tree
        for other in others:
            if other.replayed <= writer.replayed:
                continue
            if other.pool == graph.pool:
                # In a group a graph that was captured later may have the pages at other addresses.
                late = group is not None and other.begun >= block.free_number
                shares = late or other.uses.is_of_capture(block)
            else:
                shares = group is not None and exclusive_groups.get(other.pool) is group
            if shares:
                kind = MisuseKind.KEPT_RESULT
                raise GraphMisuseError(kind, graph.name, block, other.name, writer.name)

    def _check_results(self, graph: _Graph) -> None:
        """In a pool that joined late, results of later captures lie in scratch of earlier ones.
        Warns, because the program may have read them already, as in rounds of all graphs."""
        if graph.pool not in late_pools or graph.pool not in exclusive_groups:
            return
        of_pool = [
            other
            for other in self._graphs.values()
            if other is not graph and other.pool == graph.pool and other.device == graph.device
        ]
        for writer in of_pool:
            if writer.replayed <= graph.replayed:
                continue  # no result yet, or this graph has overwritten it already
            since = [other for other in of_pool if other.replayed > writer.replayed]
            gone = {b.address for other in since for b in writer.uses.in_scratch_of(other.uses)}
            found = [b for b in writer.uses.in_scratch_of(graph.uses) if b.address not in gone]
            if found:
                largest = max(found, key=lambda block: block.bytes)
                kind = MisuseKind.OVERWRITTEN_RESULT
                warn_of(GraphMisuseError(kind, graph.name, largest, writer.name))

    def _check_order(self, graph: _Graph) -> _Last | None:
        group = exclusive_groups.get(graph.pool)
        if group is None:
            return None
        by_device = self._last.setdefault(group, {})
        if graph.device not in by_device:
            by_device[graph.device] = _Last(self._extension)
        last = by_device[graph.device]
        if last.replay.is_overtaken_by(None, graph.device):
            block = graph.uses.largest_own(freed=True)
            raise GraphMisuseError(MisuseKind.OVERLAP, graph.name, block, last.name)
        return last


_lock = threading.Lock()
_watch: _Watch | None = None
_originals: dict[str, Callable[..., None]] = {}
_records_history = False
"""Whether this mode started the recording of stacks."""


def debug(enabled: bool = True) -> contextlib.AbstractContextManager[object]:
    """Turns the debug mode of graphs on or off, at once; as a context manager, until the end of the
    scope.

    A replay of a graph that was captured while the mode is on raises `GraphMisuseError`, and
    launches nothing, if it would use freed memory or memory that another graph may have
    overwritten, or if it overtakes the last replay of its exclusive group. In a pool that joined
    its group late, a replay that overwrites a live result issues a `GraphMisuseWarning`, because
    the program may have read the result already. The mode records the stacks of allocations and
    frees, unless the program already records a memory history. Raises `FerroError` without a
    device, while ferro_alloc is not installed, and unless `enabled` is True or False.
    """
    if not isinstance(enabled, bool):
        raise FerroError(f"debug({enabled!r}): expected True or False")
    scope = contextlib.ExitStack()
    scope.callback(_switch, _watch is not None)
    _switch(enabled)
    return scope


def _switch(on: bool) -> None:
    global _watch
    # This may initialise CUDA, which turns the mode on if the settings request it.
    extension = require_device("the debug mode of graphs")
    with _lock:
        if on == (_watch is not None):
            return
        if on and not is_installed():
            raise FerroError(
                "the debug mode checks memory of ferro_alloc: call ferro_alloc.install() first"
            )
        _record_history(on)
        extension.debug_graphs(on)
        _watch = _Watch(extension) if on else None
        _exchange(on)


def _record_history(on: bool) -> None:
    global _records_history
    import torch

    if on and not torch._C._cuda_isHistoryEnabled():
        torch.cuda.memory._record_memory_history(
            "all", context="all", stacks="python", max_entries=1
        )
        _records_history = True
    elif not on and _records_history:
        torch.cuda.memory._record_memory_history(None)
        _records_history = False


def _exchange(on: bool) -> None:
    import torch

    check_replays(_watch.replay if _watch is not None else None)
    of_class = torch.cuda.CUDAGraph
    if not on:
        for name, original in _originals.items():
            if getattr(of_class, name) is globals()[f"_{name}"]:  # no other code replaced it
                setattr(of_class, name, original)
        return
    for name in ("capture_begin", "capture_end", "reset"):
        if getattr(of_class, name) is not globals()[f"_{name}"]:
            _originals[name] = getattr(of_class, name)
            setattr(of_class, name, globals()[f"_{name}"])


def _capture_begin(graph: torch.cuda.CUDAGraph, *args: Any, **options: Any) -> None:
    if _watch is not None:
        _watch.capture_begin(graph)
    _originals["capture_begin"](graph, *args, **options)


def _capture_end(graph: torch.cuda.CUDAGraph) -> None:
    if _watch is None:
        _originals["capture_end"](graph)
    else:
        _watch.capture_end(graph, _originals["capture_end"])


def _reset(graph: torch.cuda.CUDAGraph) -> None:
    if _watch is not None:
        _watch.forget(graph)
    _originals["reset"](graph)


def _stack() -> list[Frame]:
    """The stack of the caller, the innermost line first."""
    frames = []
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        frames.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back  # type: ignore[assignment]
    return frames
