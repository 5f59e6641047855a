"""Exclusive groups: graphs that never run at the same time share the pages of their scratch."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ferro_alloc import _load
from ferro_alloc._errors import FerroError
from ferro_alloc.allocator import is_installed
from ferro_alloc.graphs._captured_graph import CapturedGraph
from ferro_alloc.graphs._groups import exclusive_groups, forget_gone_groups
from ferro_alloc.graphs._pools import CapturePool, PoolHandle, pool_of, pool_of_graph
from ferro_alloc.graphs._replays import exchange
from ferro_alloc.graphs._streams import require_device

if TYPE_CHECKING:
    import torch


Member = Any
"""A `torch.cuda.CUDAGraph`, a `CapturedGraph`, or a pool in any form (`PoolLike`)."""

_numbers = itertools.count(1)
_lock = threading.RLock()
"""Of the registry, and of which pools are members."""

_REASONS = {
    "no memory": "there is no memory for scratch of its own. Free some and try again",
    "capturing": "a capture is running. End it first",
    "member": "it is in another group already. leave() that one first",
    "no member": "it is not in this group",
    "native": "its memory comes from PyTorch's own allocator, which shares no pages",
}


@dataclass(frozen=True)
class GroupSizes:
    """What the scratch of a group takes, in bytes, on all devices together.

    `memory_stats()` counts each shared page once; in the sizes of pools the shared pages are those
    of the member that has any and joined first.
    """

    shared_bytes: int
    """Of the pages that the members share: about the largest scratch of one graph."""
    scratch_bytes: int
    """Of the addresses that these pages are behind: what the scratch would take without a group."""


class ExclusiveGroup:
    """Members run one after the other on each device, whatever streams they are launched on.

    Its pools stay members until they leave, or until all of them are gone. ferro_alloc keeps the
    group that long: the program need not. Thread-safe.
    """

    def __init__(self, name: str, ordered: bool) -> None:
        self._name = name
        self._ordered = ordered
        self._number = next(_numbers)
        self._pools: dict[PoolHandle, CapturePool] = {}
        self._unused: set[PoolHandle] = set()
        """Members that nothing has held yet, so they are not gone while nothing holds them."""
        self._order = threading.RLock()
        """Held for a launch, and while pools join or leave. Taken before the registry's lock."""
        self._last: dict[int, torch.cuda.Event] = {}

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_ordered_by_user(self) -> bool:
        """Whether it was made with `ordered=True`."""
        return self._ordered

    @property
    def pools(self) -> tuple[CapturePool, ...]:
        """Those that are not gone, in the order in which they joined."""
        with _lock:
            return tuple(pool for handle, pool in self._pools.items() if not self._is_gone(handle))

    def join(self, *members: Member) -> None:
        """Adds graphs and pools; those that are members already stay so.

        A graph brings its pool, with all that was captured into it. What was captured before and is
        free by now is scratch from now on; later captures share theirs when they end. The host
        waits for the device, and nothing of a member may be launched meanwhile. Raises
        `FerroError` while a capture runs, for a member of another group, and for what is no member
        at all; the message says where a pool has become a member all the same.

        `compiled_pool()` is a member like others. What its graphs carry to one another stays
        theirs: inputs, results and what a backward pass needs. They share their other scratch after
        each recording, for which the host waits for the device.
        """
        _require()
        pools = [pool_of_member(member) for member in members]
        with self._order, _lock:
            forget_gone_groups()
            exchange()
            for pool in pools:
                handle = pool.handle
                if handle in self._pools:
                    continue
                other = exclusive_groups.get(handle)
                reason = "member" if other is not None and other is not self else ""
                self._check(reason, pool)
                self._join(pool)

    def leave(self, *members: Member) -> None:
        """Gives the pools of these members scratch of their own again, with all of their graphs.

        The host waits for the device. Raises `FerroError` while a capture runs, where there is no
        memory for that, and for what is no member; then it is still one.
        """
        extension = _require()
        pools = [pool_of_member(member) for member in members]
        with self._order, _lock:
            forget_gone_groups()
            for pool in pools:
                handle = pool.handle
                self._check("" if handle in self._pools else "no member", pool)
                self._check(extension.leave_scratch(handle), pool)
                self._remove(handle)
            exchange()

    def _join(self, pool: CapturePool) -> None:
        extension = _load.load()
        try:
            self._check(extension.join_scratch(self._number, pool.handle), pool)
        except (FerroError, RuntimeError) as error:
            if not extension.is_in_group(self._number, pool.handle):
                raise
            self._add(pool)
            raise FerroError(
                f"{pool} joined the exclusive group {self._name!r} on some devices and could not "
                f"leave them again, so it is a member there until leave() succeeds. {error}"
            ) from error
        self._add(pool)

    def _add(self, pool: CapturePool) -> None:
        handle = pool.handle
        self._pools[handle] = pool
        if not _exists(handle):
            self._unused.add(handle)
        exclusive_groups[handle] = self
        exchange()

    def _remove(self, handle: PoolHandle) -> None:
        del self._pools[handle]
        self._unused.discard(handle)
        exclusive_groups.pop(handle, None)

    def _forget_if_gone(self) -> None:
        """Lets all members leave once each of them is gone. Until then they stay: a pool that
        leaves exchanges pages of the others, which may run. What cannot leave now, for a capture
        or the driver, leaves with a later call."""
        extension = _load.load()
        with _lock:
            if not all(map(self._is_gone, self._pools)):
                return
            for handle in tuple(self._pools):
                with contextlib.suppress(RuntimeError):
                    if not extension.leave_scratch(handle):
                        self._remove(handle)

    def _is_gone(self, handle: PoolHandle) -> bool:
        """Whether the member had graphs or a handle, and has neither any more."""
        if _exists(handle):
            self._unused.discard(handle)
            return False
        return handle not in self._unused

    def sizes(self) -> GroupSizes:
        shared, scratch = _require().scratch_bytes(self._number)
        return GroupSizes(shared_bytes=shared, scratch_bytes=scratch)

    def launch(self, replay: Callable[[], None], handle: PoolHandle) -> None:
        """Calls `replay`, which launches a graph of that pool on the current stream of its device:
        behind the last launch of the group there and before the next one. The host waits for
        neither."""
        import torch

        if self._ordered:
            replay()
            return
        found = _load.load().pool_device(handle)
        device = None if found < 0 else found  # of several the current one counts
        with self._order:
            stream = torch.cuda.current_stream(device)
            last = self._last.get(stream.device_index)
            if last is None:
                last = self._last[stream.device_index] = torch.cuda.Event()
            else:
                last.wait(stream)
            try:
                replay()
            finally:  # hooks of PyTorch may raise after the launch
                self._record(last, stream)

    @staticmethod
    def _record(event: torch.cuda.Event, stream: torch.cuda.Stream) -> None:
        try:
            event.record(stream)
        except RuntimeError:
            stream.synchronize()  # the next replay comes behind this one all the same
            raise

    def _check(self, reason: str, pool: CapturePool) -> None:
        if reason:
            raise FerroError(f"{pool} and the exclusive group {self._name!r}: {_REASONS[reason]}.")

    def __repr__(self) -> str:
        return f"<ExclusiveGroup {self._name!r}, {len(self._pools)} pools>"


def exclusive(*members: Member, name: str = "", ordered: bool = False) -> ExclusiveGroup:
    """A group of graphs that never run at the same time: the pages of their scratch are shared.

    Members are graphs (`torch.cuda.CUDAGraph`, `CapturedGraph`), handles of pools, `CapturePool`s
    and MemPools; `ExclusiveGroup.join` has what happens, and what no other thread may do meanwhile.
    A group takes its results and state, and the largest scratch of one graph, instead of the sum.
    What is alive at the end of a capture has pages that nothing else uses, so graphs may replay in
    any order, those of one pool too. What a graph leaves in memory that the program has let go of
    may be gone after the next replay of a partner: keep the tensors that you read, and let no
    partner run between the graphs of a forward pass and those of its backward pass.

    Replays of all graphs of its pools wait for one another on the device, not the host.
    `ordered=True` says that the program orders them itself. Raises as `join` does, and `FerroError`
    while ferro_alloc is not in PyTorch's place.
    """
    if not isinstance(name, str) or not isinstance(ordered, bool):
        raise FerroError(
            f"exclusive(name={name!r}, ordered={ordered!r}): expected a name, and True or False"
        )
    group = ExclusiveGroup(name, ordered)
    try:
        group.join(*members)
    except BaseException as error:
        try:
            group.leave(*group.pools)
        except (FerroError, RuntimeError) as left:
            raise FerroError(f"{error} What joined before is still a member: {left}") from error
        raise
    return group


def _exists(handle: PoolHandle) -> bool:
    """Whether the program has its handle, or a graph or MemPool holds its memory."""
    extension = _load.load()
    return extension.find_open_pool(handle) is not None or extension.is_pool_held(handle)


def _require() -> ModuleType:
    extension = require_device("an exclusive group")
    if not is_installed():
        raise FerroError(
            "an exclusive group shares pages of ferro_alloc: call ferro_alloc.install() first"
        )
    import torch

    torch.cuda.init()
    return extension


def pool_of_member(member: Member) -> CapturePool:
    """Raises `FerroError` for what is no member."""
    import torch

    if isinstance(member, CapturedGraph):
        return member.pool
    if isinstance(member, torch.cuda.CUDAGraph):
        return pool_of_graph(member)
    return pool_of(member)
