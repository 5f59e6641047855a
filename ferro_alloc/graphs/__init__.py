"""Captures, captured graphs, and their pools.

The package works with existing graphs: `torch.cuda.graph(pool=...)`,
`torch.cuda.make_graphed_callables(pool=...)`, `CUDAGraph.capture_begin(pool=...)` and
`torch.cuda.use_mem_pool(...)` take its handles, and every `torch.cuda.CUDAGraph` can become a
`CapturedGraph`. All of it exists without a GPU and without `ferro_alloc.install()`. Functions that
need a device raise `FerroError` without one. Seals, and the tracking of memory that graphs hold,
need an installed ferro_alloc.
"""

from ferro_alloc.graphs._capture import (
    Capture,
    CaptureGuard,
    CaptureMode,
    CaptureStatus,
    begin_capture,
    capture_status,
    end_capture,
    end_capture_with_pool,
    is_stream_capturing,
)
from ferro_alloc.graphs._captured_graph import CapturedGraph
from ferro_alloc.graphs._compiled import compiled_pool
from ferro_alloc.graphs._debug import debug
from ferro_alloc.graphs._device_scalar import DeviceScalar
from ferro_alloc.graphs._dry_run import plan
from ferro_alloc.graphs._exclusive import ExclusiveGroup, GroupSizes, exclusive
from ferro_alloc.graphs._graphed_callable import GraphedCallable, make_graphed_callable
from ferro_alloc.graphs._misuse import GraphMisuseError, GraphMisuseWarning, MisuseKind
from ferro_alloc.graphs._plan import Plan, PlannedCapture, PlannedSet
from ferro_alloc.graphs._pools import (
    CapturePool,
    PoolHandle,
    capture_pool_for_handle,
    graph_pool_handle,
    release_graph_pool_handle,
)
from ferro_alloc.graphs._sizes import GraphSizes, PoolSizes, PrivatePool

__all__ = [
    "Capture",
    "CaptureGuard",
    "CaptureMode",
    "CapturePool",
    "CaptureStatus",
    "CapturedGraph",
    "DeviceScalar",
    "ExclusiveGroup",
    "GraphMisuseError",
    "GraphMisuseWarning",
    "GraphSizes",
    "GraphedCallable",
    "GroupSizes",
    "MisuseKind",
    "Plan",
    "PlannedCapture",
    "PlannedSet",
    "PoolHandle",
    "PoolSizes",
    "PrivatePool",
    "begin_capture",
    "capture_pool_for_handle",
    "capture_status",
    "compiled_pool",
    "debug",
    "end_capture",
    "end_capture_with_pool",
    "exclusive",
    "graph_pool_handle",
    "is_stream_capturing",
    "make_graphed_callable",
    "plan",
    "release_graph_pool_handle",
]
