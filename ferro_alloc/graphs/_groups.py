"""Which exclusive group a pool is in, for launches."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ferro_alloc.graphs._pools import PoolHandle

if TYPE_CHECKING:
    import torch


class LaunchOrder(Protocol):
    """What an `ExclusiveGroup` is to a launch."""

    def orders(self, graph: torch.cuda.CUDAGraph) -> bool:
        """Whether each replay of this graph is ordered already."""

    def launch(
        self, replay: Callable[[], None], stream: torch.cuda.Stream | None = None
    ) -> None: ...


exclusive_groups: weakref.WeakValueDictionary[PoolHandle, LaunchOrder] = (
    weakref.WeakValueDictionary()
)
