"""A captured graph: launched on any stream, uploaded once, and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferro_alloc._devices import device_index
from ferro_alloc._errors import FerroError
from ferro_alloc.graphs._pools import CapturePool, PoolHandle, known_pool, pool_of
from ferro_alloc.graphs._sizes import NOT_OURS, GraphSizes
from ferro_alloc.graphs._streams import check_stream, require_device

if TYPE_CHECKING:
    import torch

    from ferro_alloc import _C


class CapturedGraph:
    """Wraps a `torch.cuda.CUDAGraph`, which stays unchanged and usable.

    `graph` must have ended its capture; `device` is the device of the capture, by default the
    current one, in any form that torch accepts. `stream` is that of launches without a stream;
    None: the current one. The wrapper keeps `pool`, with its buffers; None: the pool into which the
    graph was captured, if it was captured into one. Raises PyTorch's error for a graph without a
    capture, and `FerroError` without a device.
    """

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        *,
        device: int | str | torch.device | None = None,
        stream: torch.cuda.Stream | None = None,
        pool: CapturePool | None = None,
    ) -> None:
        extension = require_device("a captured graph")
        import torch

        if not isinstance(graph, torch.cuda.CUDAGraph):
            raise FerroError(f"{graph!r} is not a graph: expected a torch.cuda.CUDAGraph")
        self._cuda_graph = graph
        self._device = device_index(device)
        self._stream = check_stream(stream)
        self._memory = PoolHandle(graph.pool())
        if pool is None:
            # PyTorch sets the first number for a graph that is captured without a pool.
            own = self._memory[0] != 0
            pool = known_pool(self._memory) if own else pool_of(self._memory)
        self._pool = pool
        self._graph: _C.CapturedGraph = extension.CapturedGraph(
            graph, self._device, None if pool is None else pool.native, self._number(stream)
        )
        self._kept: list[Any] = []

    @property
    def cuda_graph(self) -> torch.cuda.CUDAGraph:
        """The wrapped graph. `num_replays` excludes its own replays."""
        return self._cuda_graph

    @property
    def device(self) -> int:
        return self._device

    @property
    def stream(self) -> torch.cuda.Stream | None:
        """The stream that the capture was given, or the constructor. None: a launch takes the
        current one."""
        return self._stream

    @property
    def pool(self) -> CapturePool | None:
        """The pool that lives as long as the graph; None for a graph captured without one."""
        return self._pool

    @property
    def memory_handle(self) -> PoolHandle:
        """The handle of its memory in PyTorch's allocator, for the rest of this package."""
        return self._memory

    @property
    def has_pool(self) -> bool:
        return self._pool is not None

    @property
    def buffer_count(self) -> int:
        """The number of buffers that its pool keeps alive."""
        return self._graph.buffer_count

    @property
    def num_replays(self) -> int:
        """Launches so far; a refused launch does not count."""
        return self._graph.num_replays

    @property
    def is_uploaded(self) -> bool:
        return self._graph.is_uploaded

    def launch(self, stream: torch.cuda.Stream | None = None) -> None:
        """Runs the graph after all earlier and before all later work of its stream
        (`CapturedGraph.stream`) and of the current one; with `stream`, of that stream alone. It
        also waits for the last launch of its exclusive group, if it has one. The host does not
        wait."""
        self._graph.launch(self._number(stream))

    def upload(self, stream: torch.cuda.Stream | None = None) -> None:
        """Prepares the first launch, so that it costs no more than the next. Later calls do
        nothing."""
        self._graph.upload(self._number(stream))

    def sizes(self) -> GraphSizes:
        """Returns the memory that the capture allocated from its pool. Raises `FerroError` if the
        pool is not ferro_alloc's own."""
        sizes = self._graph.sizes()
        if sizes is None:
            raise FerroError(NOT_OURS)
        return GraphSizes(**sizes)

    def keep(self, buffer: Any) -> None:
        """Keeps any object alive as long as this one."""
        self._kept.append(buffer)

    def _number(self, stream: torch.cuda.Stream | None) -> int | None:
        checked = check_stream(stream)
        if checked is None:
            return None
        if checked.device_index != self._device:
            raise FerroError(
                f"the graph was captured on device {self._device}, and the stream is of device "
                f"{checked.device_index}"
            )
        return int(checked.cuda_stream)

    def __repr__(self) -> str:
        return f"<CapturedGraph on device {self._device}, {self.num_replays} replays, {self.pool}>"
