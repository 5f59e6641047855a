"""The tags of pools: their own, or else that of their exclusive group."""

from __future__ import annotations

from ferro_alloc import _load
from ferro_alloc.graphs._pools import PoolHandle

own_tags: dict[PoolHandle, str] = {}
"""Of pools that `ferro_alloc.tag_pool()` named. Handles are unique in the process."""


def follow(handle: PoolHandle, group_tag: str) -> None:
    """Tells the allocator the pool's tag, after one of the two has changed."""
    _load.load().tag_pool(handle, own_tags.get(handle) or group_tag)
