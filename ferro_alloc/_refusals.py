"""Refuses replays of graphs whose pool is asleep, and captures that ferro_alloc would refuse.

The methods are replaced in PyTorch's class below `torch.cuda.CUDAGraph`, so bound methods that a
program took earlier are refused too: `replay` while a pool is asleep, and `capture_begin` while
memory is, and from the first seal of a pool on. Otherwise they are PyTorch's own.

A capture is refused here, before the allocator is asked, because PyTorch first writes the state of
its random generator: that memory may be asleep, and the generator would stay in its capture.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ferro_alloc import _load
from ferro_alloc._errors import FerroError

if TYPE_CHECKING:
    import torch

_lock = threading.Lock()
_originals: dict[str, Any] = {}
"""By name; from the first exchange on."""
_asleep: frozenset[tuple[int, int]] = frozenset()
_has_seals = False


def follow_sleep(is_any_asleep: bool, pools: Iterable[tuple[int, int]]) -> None:
    """Called after memory fell asleep or woke, with all private pools that have memory asleep."""
    global _asleep
    with _lock:
        _asleep = frozenset(pools)
        _exchange("replay", _replay, len(_asleep) != 0)
        _exchange("capture_begin", _capture_begin, is_any_asleep or _has_seals)


def follow_seal() -> None:
    """Called after a pool was sealed."""
    global _has_seals
    with _lock:
        _has_seals = True
        _exchange("capture_begin", _capture_begin, True)


def _exchange(name: str, ours: Callable[..., None], is_wanted: bool) -> None:
    import torch

    of_graphs = torch.cuda.CUDAGraph.__mro__
    of_class = next(each for each in reversed(of_graphs) if name in vars(each))
    now = vars(of_class)[name]
    if is_wanted and now is not ours:
        _originals[name] = now
        setattr(of_class, name, ours)
    elif not is_wanted and now is ours:  # otherwise other code has replaced it
        setattr(of_class, name, _originals[name])


def _replay(graph: torch.cuda.CUDAGraph) -> None:
    if _asleep:
        try:
            pool = tuple(graph.pool())
        except RuntimeError:  # there is no capture, which the replay reports
            pool = ()
        if pool in _asleep:
            raise FerroError(
                f"the memory of this graph is asleep: pool {pool}. Call ferro_alloc.wake() before "
                "the replay"
            )
    _originals["replay"].__get__(graph)()


def _capture_begin(graph: torch.cuda.CUDAGraph, *args: Any, **options: Any) -> None:
    import torch

    pool = args[0] if args else options.get("pool")
    _load.load().check_capture(torch.cuda.current_device(), tuple(pool or (0, 0)))
    _originals["capture_begin"].__get__(graph)(*args, **options)
