"""Captures: their modes and states, and scopes that always end their capture."""

from __future__ import annotations

import enum
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ferro_alloc._errors import FerroError
from ferro_alloc.graphs._captured_graph import CapturedGraph
from ferro_alloc.graphs._pools import (
    CapturePool,
    PoolLike,
    graph_pool_handle,
    pool_of,
    release_graph_pool_handle,
)
from ferro_alloc.graphs._streams import check_stream, require_device

if TYPE_CHECKING:
    import torch


class CaptureMode(enum.Enum):
    """Which calls are allowed during a capture; the values are those of `capture_error_mode`.

    Calls that might disturb a capture, such as `cudaMalloc`, fail and invalidate it: under `GLOBAL`
    from every thread, under `THREAD_LOCAL` from the capturing thread. Under `RELAXED` they are
    allowed.
    """

    GLOBAL = "global"
    THREAD_LOCAL = "thread_local"
    RELAXED = "relaxed"


class CaptureStatus(enum.Enum):
    """The state of a stream. An invalidated capture keeps its stream until it is ended."""

    NONE = 0
    ACTIVE = 1
    INVALIDATED = 2

    @property
    def is_capturing(self) -> bool:
        """False for an invalidated capture, although it must still be ended."""
        return self is CaptureStatus.ACTIVE

    @property
    def is_invalidated(self) -> bool:
        return self is CaptureStatus.INVALIDATED


def capture_status(stream: torch.cuda.Stream | None = None) -> CaptureStatus:
    """Returns the state of `stream`, or of the current one. Disturbs no capture. Raises
    `FerroError` without a device."""
    extension = require_device("capture_status()")
    import torch

    stream = check_stream(stream) or torch.cuda.current_stream()
    return CaptureStatus(extension.capture_status(stream.device_index, stream.cuda_stream))


def is_stream_capturing(stream: torch.cuda.Stream | None = None) -> bool:
    """Whether work on `stream`, or on the current one, becomes part of a graph. False for an
    invalidated capture, for which `torch.cuda.is_current_stream_capturing()` is true."""
    return capture_status(stream).is_capturing


_running: dict[tuple[int, int], weakref.ref[Capture]] = {}
"""The captures of `begin_capture()`, by the device and the number of their stream."""


class Capture:
    """A capture of this thread: its stream is the current one until the capture is over.

    `begin_capture()` creates it. If the program drops it without ending it, it is discarded.
    """

    def __init__(
        self,
        pool: PoolLike | None,
        capture_error_mode: CaptureMode | str,
        stream: torch.cuda.Stream | None,
    ) -> None:
        self._running = False
        self._extension = require_device("a capture")
        import torch

        mode = checked_mode(capture_error_mode)
        self._stream = check_stream(stream) or _side_stream()
        if _is_in_capture(self._stream):
            raise FerroError("the stream is capturing already: end that capture first")
        if pool is not None:
            _refuse_if_sealed(pool_of(pool))
        # What other pools keep free stands in the way of this one. Unlike torch.cuda.graph, which
        # waits for the device, this leaves captures that run alone; inside of one nothing can wait.
        previous = torch.cuda.current_stream(self._stream.device)
        if not (_is_in_capture() or _is_in_capture(previous)):
            previous.synchronize()
            torch.cuda.empty_cache()
            torch._C._host_emptyCache()
        self._pool = pool_of(graph_pool_handle() if pool is None else pool)
        self._graph = torch.cuda.CUDAGraph()
        self._scope = torch.cuda.stream(self._stream)
        self._scope.__enter__()
        try:
            self._graph.capture_begin(pool=self._pool.handle, capture_error_mode=mode.value)
            self._running = True
            _running[_key(self._stream)] = weakref.ref(self)
        except BaseException:
            self._settle(self._let_go())
            raise
        finally:
            if pool is None:  # from now on the graph alone keeps it
                release_graph_pool_handle(self._pool.handle)

    @property
    def pool(self) -> CapturePool:
        return self._pool

    @property
    def stream(self) -> torch.cuda.Stream:
        return self._stream

    def status(self) -> CaptureStatus:
        """`NONE` once the capture is over."""
        return capture_status(self._stream) if self._running else CaptureStatus.NONE

    def end(self) -> CapturedGraph:
        """Returns the graph. Raises PyTorch's error if the capture is invalid; then the capture is
        over, and stream, pool and allocator are as before it. Raises `FerroError` the second
        time."""
        if not self._running:
            raise FerroError("this capture is over: end a capture once")
        graph = self._let_go()
        try:
            graph.capture_end()
        except BaseException:
            self._settle(graph)
            raise
        self._leave()
        return CapturedGraph(graph, device=self._stream.device_index)

    def discard(self) -> None:
        """Ends the capture and drops its graph. Does nothing if it is over."""
        if not self._running:
            return
        graph = self._let_go()
        try:
            graph.capture_end()
        except RuntimeError:
            self._settle(graph)
        else:
            self._leave()

    def __del__(self) -> None:
        self.discard()

    def _let_go(self) -> torch.cuda.CUDAGraph:
        """Gives up the graph: PyTorch keeps memory for random numbers as long as the object
        exists."""
        if self._running:
            self._running = False
            _running.pop(_key(self._stream), None)
        graph = self._graph
        del self._graph
        return graph

    def _leave(self) -> None:
        self._scope.__exit__(None, None, None)

    def _settle(self, graph: torch.cuda.CUDAGraph) -> None:
        self._leave()
        graph.reset()  # errors keep the object alive, and later versions release its pool here
        self._extension.settle_after_failed_capture(
            self._stream.device_index, self._stream.cuda_stream
        )


def begin_capture(
    pool: PoolLike | None = None,
    *,
    stream: torch.cuda.Stream | None = None,
    capture_error_mode: CaptureMode | str = CaptureMode.THREAD_LOCAL,
) -> Capture:
    """Begins to capture on `stream`, which becomes the current one.

    `pool`: a handle, a `CapturePool` or a `torch.cuda.MemPool`; None: a new pool, which lives as
    long as the graph. `stream`: None for a side stream of this thread; graphs that share a pool
    share its free memory if they are captured on the same stream. `capture_error_mode`: that of
    `torch.cuda.graph`. Raises `FerroError` without a device and for a sealed pool; otherwise
    PyTorch's error. Then no capture has begun.
    """
    return Capture(pool, capture_error_mode, stream)


def end_capture(capture: Capture | torch.cuda.Stream | None = None) -> CapturedGraph:
    """Calls `Capture.end()` of a capture, or of the capture of `begin_capture()` on a stream; None:
    on the current stream. Raises `FerroError` if there is none."""
    if isinstance(capture, Capture):
        return capture.end()
    require_device("end_capture()")
    import torch

    stream = check_stream(capture) or torch.cuda.current_stream()
    found = _running.get(_key(stream))
    running = None if found is None else found()
    if running is None:
        raise FerroError(f"no capture of begin_capture() runs on {stream}")
    return running.end()


class CaptureGuard:
    """A scope that captures. If its body raises, the capture is discarded and the error propagates.

    ```python
    with CaptureGuard(pool) as guard:
        output = model(tokens)
    guard.graph.launch()
    ```
    The arguments are those of `begin_capture()`. It can be entered once.
    """

    def __init__(
        self,
        pool: PoolLike | None = None,
        *,
        stream: torch.cuda.Stream | None = None,
        capture_error_mode: CaptureMode | str = CaptureMode.THREAD_LOCAL,
    ) -> None:
        self._pool = pool
        self._mode = checked_mode(capture_error_mode)
        self._stream = stream
        self._capture: Capture | None = None
        self._graph: CapturedGraph | None = None

    @property
    def graph(self) -> CapturedGraph:
        """Raises `FerroError` before the end of the scope, and if the capture failed."""
        if self._graph is None:
            raise FerroError("there is no graph: the capture has not ended, or it failed")
        return self._graph

    def status(self) -> CaptureStatus:
        """`NONE` outside the scope."""
        return CaptureStatus.NONE if self._capture is None else self._capture.status()

    def __enter__(self) -> Self:
        if self._capture is not None:
            raise FerroError("a CaptureGuard captures once: create another one")
        self._capture = begin_capture(
            self._pool, stream=self._stream, capture_error_mode=self._mode
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._capture is not None
        if kind is None:
            self._graph = self._capture.end()
        else:
            self._capture.discard()


def _refuse_if_sealed(pool: CapturePool) -> None:
    if pool.is_sealed:
        raise FerroError(
            f"the graph pool {pool.name!r} {tuple(pool.handle)} is sealed: nothing may be captured "
            "into it. Call unseal() first, or use another pool."
        )


_streams = threading.local()


def _side_stream() -> torch.cuda.Stream:
    """The same stream for each capture of this thread on the current device."""
    import torch

    by_device: dict[int, torch.cuda.Stream] = _streams.__dict__.setdefault("by_device", {})
    device = torch.cuda.current_device()
    if device not in by_device:
        by_device[device] = torch.cuda.Stream(device)
    return by_device[device]


def _key(stream: torch.cuda.Stream) -> tuple[int, int]:
    return stream.device_index, stream.cuda_stream


def _is_in_capture(stream: torch.cuda.Stream | None = None) -> bool:
    """True also for an invalidated capture."""
    return capture_status(stream) is not CaptureStatus.NONE


def checked_mode(mode: CaptureMode | str) -> CaptureMode:
    try:
        return CaptureMode(mode)
    except ValueError:
        known = ", ".join(repr(known.value) for known in CaptureMode)
        raise FerroError(f"{mode!r} is not a capture mode: expected one of {known}") from None
