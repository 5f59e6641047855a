"""Exclusive groups: graphs that never run at the same time share the pages of their scratch."""

from __future__ import annotations

import contextlib
import itertools
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ferro_alloc import _load
from ferro_alloc._errors import FerroError
from ferro_alloc.allocator import is_installed
from ferro_alloc.graphs._captured_graph import CapturedGraph
from ferro_alloc.graphs._groups import exclusive_groups, forget_gone_groups, late_pools
from ferro_alloc.graphs._pool_tags import follow, own_tags
from ferro_alloc.graphs._pools import CapturePool, PoolHandle, handle_of, pool_of
from ferro_alloc.graphs._replays import exchange
from ferro_alloc.graphs._sizes import pool_sizes
from ferro_alloc.graphs._streams import require_device

if TYPE_CHECKING:
    import torch


Member = Any
"""A `torch.cuda.CUDAGraph`, a `CapturedGraph`, or a pool in any form (`PoolLike`)."""

_numbers = itertools.count(1)
_lock = threading.RLock()
"""Guards the registry, and the membership of pools."""

_REASONS = {
    "asleep": "its scratch is asleep. Call ferro_alloc.wake() first",
    "no memory": "there is no memory for separate scratch. Free some and try again",
    "capturing": "a capture is running. End it first",
    "busy": "another device works for too long, or a library captures. Try again later",
    "member": "it is already in another group. leave() that one first",
    "no member": "it is not in this group",
    "native": "its memory comes from PyTorch's own allocator, which shares no pages",
}


@dataclass(frozen=True)
class GroupSizes:
    """The memory of a group's scratch, in bytes, on all devices together.

    `memory_stats()` counts each shared page once; the sizes of pools count the shared pages for the
    first member that has scratch.
    """

    shared_bytes: int
    """Bytes of the pages that the members share: about the largest scratch of one graph."""
    scratch_bytes: int
    """Bytes of the addresses that these pages back: the scratch without a group."""


class ExclusiveGroup:
    """Members run one after the other on each device, on any streams.

    Its pools stay members until they leave, or until all of them are gone. ferro_alloc keeps the
    group that long, so the program need not. Thread-safe.
    """

    def __init__(self, name: str, ordered: bool) -> None:
        self._name = name
        self._ordered = ordered
        self._number = next(_numbers)
        self._pools: dict[PoolHandle, None] = {}
        """In the order in which they joined."""
        self._unused: set[PoolHandle] = set()
        """Members that were never held, so they count as existing although nothing holds them."""
        self._order = threading.RLock()
        """Held during a launch, and while pools join or leave. Taken before the registry's lock."""
        self._last: dict[int, torch.cuda.Event] = {}
        self._tag = ""
        """Of its pools, unless they have one of their own; see `tag_pool`."""

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_ordered_by_user(self) -> bool:
        """Whether it was created with `ordered=True`."""
        return self._ordered

    @property
    def pools(self) -> tuple[CapturePool, ...]:
        """The members that still exist, in the order in which they joined."""
        with _lock:
            return tuple(pool_of(handle) for handle in self._pools if not self._is_gone(handle))

    def join(self, *members: Member) -> None:
        """Adds graphs and pools; existing members stay.

        A graph brings its pool, with all graphs captured into it. Memory of earlier captures that
        is now free becomes scratch; later captures share theirs when they end. The host waits for
        the device, and no thread may launch a member's graph meanwhile. Raises `FerroError` while a
        capture runs, for a member of another group, and for an invalid member; the message names a
        pool that has become a member nevertheless.

        Declare a pool before the second capture into it. If earlier captures share memory with
        later ones by then, their graphs keep PyTorch's rule among themselves: they replay in the
        order of their captures, because results of the later ones lie in scratch of the earlier
        ones. A `UserWarning` reports each such pool once.

        `compiled_pool()` may be a member. Memory that its graphs pass to one another stays private:
        inputs, results and saved tensors of a backward pass. They share their other scratch after
        each recording, for which the host waits for the device.
        """
        self._join_all(members)

    def _join_all(self, members: tuple[Member, ...]) -> None:
        _require()
        handles = [handle_of_member(member) for member in members]
        for handle in handles:
            _warn_if_late(handle)
        with self._order, _lock:
            forget_gone_groups()
            exchange()
            for handle in handles:
                if handle in self._pools:
                    continue
                other = exclusive_groups.get(handle)
                reason = "member" if other is not None and other is not self else ""
                self._check(reason, handle)
                self._join(handle)

    def leave(self, *members: Member) -> None:
        """Gives the pools of these members separate scratch again, with all of their graphs.

        The host waits for the device. Raises `FerroError` while a capture runs, without memory for
        the scratch, and for a pool that is not a member; a member then stays one.
        """
        extension = _require()
        handles = [handle_of_member(member) for member in members]
        with self._order, _lock:
            forget_gone_groups()
            for handle in handles:
                self._check("" if handle in self._pools else "no member", handle)
                self._check(extension.leave_scratch(handle), handle)
                self._remove(handle)
            exchange()

    def _join(self, handle: PoolHandle) -> None:
        extension = _load.load()
        try:
            self._check(extension.join_scratch(self._number, handle), handle)
        except (FerroError, RuntimeError) as error:
            if not extension.is_in_group(self._number, handle):
                raise
            self._add(handle)
            raise FerroError(
                f"{pool_of(handle)} joined the exclusive group {self._name!r} on some devices and "
                "could not leave them again, so it is a member there until leave() succeeds. "
                f"{error}"
            ) from error
        self._add(handle)

    def _add(self, handle: PoolHandle) -> None:
        self._pools[handle] = None
        if not _exists(handle):
            self._unused.add(handle)
        exclusive_groups[handle] = self
        if self._tag:
            follow(handle, self._tag)
        exchange()

    def _remove(self, handle: PoolHandle) -> None:
        del self._pools[handle]
        self._unused.discard(handle)
        exclusive_groups.pop(handle, None)
        if self._tag:
            follow(handle, "")

    def _forget_if_gone(self) -> None:
        """Lets all members leave once each of them is gone. Until then they stay, because a pool
        that leaves exchanges pages of the others, which may run. A pool that cannot leave now,
        because of a capture or the driver, leaves with a later call."""
        extension = _load.load()
        with _lock:
            if not all(map(self._is_gone, self._pools)):
                return
            for handle in tuple(self._pools):
                with contextlib.suppress(RuntimeError):
                    if not extension.leave_scratch(handle):
                        self._remove(handle)

    def _is_gone(self, handle: PoolHandle) -> bool:
        """Whether the member had graphs or a handle, and now has neither."""
        if _exists(handle):
            self._unused.discard(handle)
            return False
        return handle not in self._unused

    def sizes(self) -> GroupSizes:
        shared, scratch = _require().scratch_bytes(self._number)
        return GroupSizes(shared_bytes=shared, scratch_bytes=scratch)

    def launch(self, replay: Callable[[], None], handle: PoolHandle) -> None:
        """Calls `replay`, which launches a graph of that pool on the current stream of its device,
        after the last launch of the group there and before the next one. The host does not wait."""
        import torch

        if self._ordered:
            replay()
            return
        found = _load.load().pool_device(handle)
        device = None if found < 0 else found  # a pool of several devices uses the current one
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
            stream.synchronize()  # so that the next replay still comes after this one
            raise

    def _check(self, reason: str, handle: PoolHandle) -> None:
        if reason:
            raise FerroError(
                f"{pool_of(handle)} and the exclusive group {self._name!r}: {_REASONS[reason]}."
            )

    def __repr__(self) -> str:
        return f"<ExclusiveGroup {self._name!r}, {len(self._pools)} pools>"


def exclusive(*members: Member, name: str = "", ordered: bool = False) -> ExclusiveGroup:
    """Creates a group of graphs that never run at the same time and share the pages of their
    scratch.

    Members are graphs (`torch.cuda.CUDAGraph`, `CapturedGraph`), handles of pools, `CapturePool`s
    and MemPools; `ExclusiveGroup.join` describes the effect, and the calls that other threads must
    not make meanwhile. A group takes the memory of its results and state, plus the largest scratch
    of one graph, instead of the sum. Memory that is live at the end of a capture has private pages,
    so graphs may replay in any order, including those of one pool that was declared before its
    second capture; `join` describes the others. The next replay of a partner may
    overwrite memory that the program has released: keep the tensors that you read, and let no
    partner run between the graphs of a forward pass and those of its backward pass.

    Replays of all graphs of its pools wait for one another on the device, not on the host.
    `ordered=True` declares that the program orders them itself. Raises as `join` does, and
    `FerroError` while ferro_alloc is not installed.
    """
    if not isinstance(name, str) or not isinstance(ordered, bool):
        raise FerroError(
            f"exclusive(name={name!r}, ordered={ordered!r}): expected a name, and True or False"
        )
    group = ExclusiveGroup(name, ordered)
    try:
        group._join_all(members)
    except BaseException as error:
        try:
            group.leave(*group.pools)
        except (FerroError, RuntimeError) as left:
            raise FerroError(f"{error} Earlier members are still in the group: {left}") from error
        raise
    return group


def tag_pool(pool: Member | ExclusiveGroup, tag: str) -> None:
    """`ferro_alloc.tag_pool()`, with a name that is valid, or empty."""
    with _lock:
        if isinstance(pool, ExclusiveGroup):
            pool._tag = tag
            for handle in pool._pools:
                follow(handle, tag)
            return
        handle = handle_of_member(pool)
        if tag:
            own_tags[handle] = tag
        else:
            own_tags.pop(handle, None)
        group = exclusive_groups.get(handle)
        follow(handle, group._tag if isinstance(group, ExclusiveGroup) else "")


def _warn_if_late(handle: PoolHandle) -> None:
    """Reports a pool whose captures share memory already, unless its trees order their replays."""
    if handle in late_pools or handle in exclusive_groups or _load.load().is_tree_pool(handle):
        return
    if pool_sizes(handle).shared_bytes != 0:
        late_pools.add(handle)
        warnings.warn(
            f"{pool_of(handle)} joins an exclusive group after several captures that share memory, "
            "so their graphs must replay in the order of their captures: declare the pool before "
            "the second capture into it.",
            stacklevel=4,
        )


def _exists(handle: PoolHandle) -> bool:
    """Whether the program holds the pool or its handle, or a graph or MemPool its memory."""
    extension = _load.load()
    return extension.find_pool(handle) is not None or extension.is_pool_held(handle)


def _require() -> ModuleType:
    extension = require_device("an exclusive group")
    if not is_installed():
        raise FerroError(
            "an exclusive group shares pages of ferro_alloc: call ferro_alloc.install() first"
        )
    import torch

    torch.cuda.init()
    return extension


def handle_of_member(member: Member) -> PoolHandle:
    """Raises `FerroError` for an invalid member."""
    import torch

    if isinstance(member, CapturedGraph):
        return member.memory_handle
    if isinstance(member, torch.cuda.CUDAGraph):
        return PoolHandle(member.pool())
    return handle_of(member)
