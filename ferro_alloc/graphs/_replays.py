"""Wraps each replay of PyTorch's graphs: with the order of its exclusive group, and within it the
check of the debug mode.

`torch.cuda.CUDAGraph.replay` is replaced while groups exist or the debug mode is on, and is
PyTorch's own otherwise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ferro_alloc.graphs._groups import exclusive_groups, forget_gone_groups
from ferro_alloc.graphs._pools import PoolHandle

if TYPE_CHECKING:
    import torch

    Replay = Callable[[torch.cuda.CUDAGraph], None]
    Check = Callable[[torch.cuda.CUDAGraph, Replay], None]

_lock = threading.Lock()
_original: Replay | None = None
"""None before the first exchange."""
_check: Check | None = None


def check_replays(check: Check | None) -> None:
    """From now on `check` launches each graph, with PyTorch's own replay, or refuses it."""
    global _check
    _check = check
    forget_gone_groups()
    exchange()


def exchange() -> None:
    """Called after a group has gained its first member or lost its last one."""
    import torch

    global _original
    of_class = torch.cuda.CUDAGraph
    with _lock:
        is_ours = of_class.replay is _replay
        wanted = _check is not None or len(exclusive_groups) != 0
        if wanted and not is_ours:
            _original = of_class.replay
            of_class.replay = _replay
        elif is_ours and not wanted:  # otherwise other code has replaced it
            assert _original is not None
            of_class.replay = _original


def _replay(graph: torch.cuda.CUDAGraph) -> None:
    handle = _pool_of(graph) if exclusive_groups else None
    group = None if handle is None else exclusive_groups.get(handle)
    if handle is None or group is None:
        _launch(graph)
    else:
        group.launch(partial(_launch, graph), handle)


def _pool_of(graph: torch.cuda.CUDAGraph) -> PoolHandle | None:
    try:
        return tuple(graph.pool())  # type: ignore[return-value]
    except RuntimeError:  # there is no capture, which the replay reports
        return None


def _launch(graph: torch.cuda.CUDAGraph) -> None:
    assert _original is not None
    if _check is None:
        _original(graph)
    else:
        _check(graph, _original)
