"""The pool in which `torch.compile` keeps a tree of graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferro_alloc._errors import FerroError
from ferro_alloc.graphs._pools import PoolHandle
from ferro_alloc.graphs._streams import require_device

if TYPE_CHECKING:
    import torch


def compiled_pool(device: torch.device | int | str | None = None) -> PoolHandle:
    """Returns the pool of the graphs that `torch.compile` records for this thread, on the current
    device unless `device` names another: with `mode="reduce-overhead"`, `mode="max-autotune"` or
    `backend="cudagraphs"`. All of them are in one pool, as a tree.

    The pool can be a member of an exclusive group. It exists from the first call of a compiled
    function on, which only warms up; later recordings are known to belong to a tree. After
    `torch.compiler.reset()` the next function gets another pool. Raises `FerroError` before the
    pool exists, for a device that is not a CUDA device, and without one.
    """
    extension = require_device("the pool of compiled functions")
    import torch
    from torch._inductor import cudagraph_trees

    where = torch.device("cuda" if device is None else device)
    if where.type != "cuda":
        raise FerroError(f"{where} has no graphs: expected a CUDA device")
    index = torch.cuda.current_device() if where.index is None else where.index
    try:
        manager = cudagraph_trees.get_manager(index, create_if_none_exists=False)
    except AssertionError:  # PyTorch has no trees for this thread
        manager = None
    if manager is None:
        raise FerroError(
            f"torch.compile has recorded no graphs for this thread on device {index}: call a "
            'function compiled with mode="reduce-overhead" once before, in the same thread'
        )
    handle = PoolHandle(manager.cuda_graphs_thread_pool)
    extension.expect_checkpoints(handle)
    return handle
