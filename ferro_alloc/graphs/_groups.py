"""The exclusive group of each pool, for launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ferro_alloc.graphs._pools import PoolHandle


class LaunchOrder(Protocol):
    """The part of an `ExclusiveGroup` that a launch uses."""

    def launch(self, replay: Callable[[], None], handle: PoolHandle) -> None: ...

    def _forget_if_gone(self) -> None: ...


exclusive_groups: dict[PoolHandle, LaunchOrder] = {}
"""The registry owns the groups: the pages of a member stay shared, so its replays stay ordered even
if the program has dropped the group."""


late_pools: set[PoolHandle] = set()
"""Pools whose captures shared memory before they joined a group: results of some captures lie in
scratch of others. Never removed, because handles are unique in the process."""


def forget_gone_groups() -> None:
    """Removes groups whose last member has left or is gone."""
    for group in set(exclusive_groups.copy().values()):
        group._forget_if_gone()
