"""Which exclusive group a pool is in, for launches."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

from ferro_alloc.graphs._pools import PoolHandle


class LaunchOrder(Protocol):
    """What an `ExclusiveGroup` is to a launch."""

    def launch(self, replay: Callable[[], None], handle: PoolHandle) -> None: ...


exclusive_groups: weakref.WeakValueDictionary[PoolHandle, LaunchOrder] = (
    weakref.WeakValueDictionary()
)
