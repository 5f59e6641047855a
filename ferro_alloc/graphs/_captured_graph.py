"""A captured graph: launched on any stream, uploaded once, and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferro_alloc._devices import device_index
from ferro_alloc._errors import FerroError
from ferro_alloc.graphs._pools import CapturePool, pool_of_graph
from ferro_alloc.graphs._sizes import NOT_OURS, GraphSizes
from ferro_alloc.graphs._streams import check_stream, require_device

if TYPE_CHECKING:
    import torch

    from ferro_alloc import _C


class CapturedGraph:
    """Wraps a `torch.cuda.CUDAGraph`, which stays unchanged and usable.

    `graph` must have ended its capture; `device` is the device of the capture, by default the
    current one, in any form that torch accepts. The wrapper keeps its pool, with the pool's
    buffers. Raises PyTorch's error for a graph without a capture, and `FerroError` without a
    device.
    """

    def __init__(
        self, graph: torch.cuda.CUDAGraph, *, device: int | str | torch.device | None = None
    ) -> None:
        extension = require_device("a captured graph")
        import torch

        if not isinstance(graph, torch.cuda.CUDAGraph):
            raise FerroError(f"{graph!r} is not a graph: expected a torch.cuda.CUDAGraph")
        self._device = device_index(device)
        self._cuda_graph = graph
        self._pool = pool_of_graph(graph)
        self._graph: _C.CapturedGraph = extension.CapturedGraph(
            graph, self._device, self._pool.native
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
    def pool(self) -> CapturePool:
        return self._pool

    @property
    def has_pool(self) -> bool:
        """Whether a pool lives as long as the graph. PyTorch's graphs all have one."""
        return self._graph.has_pool

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
        """Runs the graph after all work of `stream`, or of the current one, and after the last
        launch of its exclusive group, if it has one. The host does not wait."""
        self._graph.launch(None if stream is None else self._number(stream))

    def upload(self, stream: torch.cuda.Stream | None = None) -> None:
        """Prepares the first launch, so that it costs no more than the next. Later calls do
        nothing."""
        self._graph.upload(None if stream is None else self._number(stream))

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

    def _number(self, stream: torch.cuda.Stream) -> int:
        checked = check_stream(stream)
        assert checked is not None
        if checked.device_index != self._device:
            raise FerroError(
                f"the graph was captured on device {self._device}, and the stream is of device "
                f"{checked.device_index}"
            )
        return int(checked.cuda_stream)

    def __repr__(self) -> str:
        return f"<CapturedGraph on device {self._device}, {self.num_replays} replays, {self.pool}>"
