"""Captures: their modes and states, and scopes that always end their capture."""

from __future__ import annotations

import contextlib
import enum
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ferro_alloc._errors import FerroError
from ferro_alloc.graphs._captured_graph import CapturedGraph
from ferro_alloc.graphs._pools import (
    CapturePool,
    PoolHandle,
    PoolLike,
    pool_of,
    pool_or_none,
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


_running: dict[tuple[int, int], Callable[[], Capture | None]] = {}
"""The captures of `begin_capture()`, by the device and the number of their stream. On a stream of
the program they are owned, because the program can end them by the stream."""


_dropped: list[Capture] = []
"""Captures whose object went in a thread that cannot end them. Their own thread does when it begins
another one."""


class _CurrentStream:
    """Makes a stream current in this thread, with its device, until `restore()`."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        import torch

        self._stream = stream
        # The last one restored is of the device that was current.
        self._before = [torch.cuda.current_stream(stream.device), torch.cuda.current_stream()]
        torch.cuda.set_stream(stream)

    def is_current(self) -> bool:
        import torch

        return bool(torch.cuda.current_stream(self._stream.device) == self._stream)

    def restore(self) -> None:
        import torch

        for stream in self._before:
            torch.cuda.set_stream(stream)

    def replace(self, ended: _CurrentStream) -> None:
        """Restores what was current before `ended`, if that was the current stream."""
        for i, stream in enumerate(self._before):
            if stream == ended._stream:
                self._before[i] = ended._before[i]


class Capture:
    """A capture of this thread: its stream is the current one until the capture is over.

    `begin_capture()` creates it. If the program drops it without ending it, it is discarded, unless
    the program gave the stream: such a capture runs until `end_capture(stream)`. CUDA lets only the
    thread that began a capture end it, unless the mode is `RELAXED`: a capture that is dropped in
    another thread runs until its own begins another one.
    """

    def __init__(
        self,
        pool: PoolLike | None,
        capture_error_mode: CaptureMode | str,
        stream: torch.cuda.Stream | None,
    ) -> None:
        self._running = False
        self._extension = require_device("a capture")
        self._extension.keep_gil_in_capture_begin()  # also where ferro_alloc is not installed
        for dropped in [capture for capture in _dropped if capture._may_end()]:
            _dropped.remove(dropped)
            dropped.discard()
        import torch

        self._mode = checked_mode(capture_error_mode)
        self._thread = threading.get_ident()
        self._given = check_stream(stream)
        self._stream = self._given or _side_stream()
        if _is_in_capture(self._stream):
            raise FerroError("the stream is capturing already: end that capture first")
        self._pool = pool_or_none(pool)
        if self._pool is None:
            self._memory = PoolHandle(self._extension.new_capture_handle())
        else:
            _refuse_if_sealed(self._pool)
            self._memory = self._pool.handle
        self._extension.check_capture(self._stream.device_index, self._memory)
        # What other pools keep free stands in the way of this one. Unlike torch.cuda.graph, which
        # waits for the device, this leaves captures that run alone; inside of one nothing can wait.
        previous = torch.cuda.current_stream(self._stream.device)
        if not (_is_in_capture() or _is_in_capture(previous)):
            previous.synchronize()
            torch.cuda.empty_cache()
            torch._C._host_emptyCache()
        self._graph = torch.cuda.CUDAGraph()
        self._current = _CurrentStream(self._stream)
        try:
            self._graph.capture_begin(pool=self._memory, capture_error_mode=self._mode.value)
            self._running = True
            _running[_key(self._stream)] = weakref.ref(self)
        except BaseException:
            self._current.restore()
            self._settle(self._let_go())
            raise

    @property
    def pool(self) -> CapturePool | None:
        """The pool of the capture. A capture without one gets one when the program asks for it
        before the end; its graph then keeps that pool."""
        if self._pool is None and self._running:
            self._pool = pool_of(self._memory)
        return self._pool

    @property
    def stream(self) -> torch.cuda.Stream:
        return self._stream

    def status(self) -> CaptureStatus:
        """`NONE` once the capture is over."""
        return capture_status(self._stream) if self._running else CaptureStatus.NONE

    def end(self, pool: PoolLike | None = None) -> CapturedGraph:
        """Returns the graph. It keeps `pool` with its buffers, if the capture has no pool; the
        memory of the capture stays in a pool of the graph.

        Raises PyTorch's error if the capture is invalid; then the capture is over, and stream, pool
        and allocator are as before it. Raises `FerroError` the second time; and, with the capture
        running on, for a sealed `pool`, for another one than the capture's, and in another thread
        than the one that began the capture, unless its mode is `RELAXED`.
        """
        if not self._running:
            raise FerroError("this capture is over: end a capture once")
        self._check_thread()
        is_attached = self._attach(pool)
        graph = self._finish()
        if is_attached:
            # The memory of the graph does not lead to this pool: the program may keep it alone.
            graph.attached_pool = self._pool
        return CapturedGraph(
            graph, device=self._stream.device_index, stream=self._given, pool=self._pool
        )

    def _attach(self, pool: PoolLike | None) -> bool:
        """Whether the capture had no pool and now has this one."""
        attached = pool_or_none(pool)
        if attached is None:
            return False
        if self._pool is None:
            _refuse_if_sealed(attached)
            self._pool = attached
            return True
        if attached is not self._pool:
            raise FerroError(
                f"the capture is into {self._pool}, and was to end with {attached}: expected the "
                "same pool, or none"
            )
        return False

    def discard(self) -> None:
        """Ends the capture and drops its graph. Does nothing if it is over. Raises `FerroError` in
        another thread, as `end()` does."""
        if not self._running:
            return
        self._check_thread()
        with contextlib.suppress(RuntimeError):
            self._finish()

    def __repr__(self) -> str:
        status = self.status().name.lower() if self._running else "over"
        return f"<Capture on device {self._stream.device_index}, {status}, {self._pool}>"

    def __del__(self) -> None:
        if not self._running or sys.is_finalizing():
            return  # at the end of Python, nothing that it needs can be imported
        if self._may_end():
            self.discard()
        else:
            _dropped.append(self)

    def _may_end(self) -> bool:
        return self._mode is CaptureMode.RELAXED or self._thread == threading.get_ident()

    def _check_thread(self) -> None:
        if not self._may_end():
            raise FerroError(
                f"the capture in mode {self._mode.value!r} was begun by another thread, and CUDA "
                "lets no other thread end it: end it there, or begin it with "
                f"capture_error_mode={CaptureMode.RELAXED.value!r}"
            )

    def _finish(self) -> torch.cuda.CUDAGraph:
        """Ends the capture, on its stream. Afterwards the stream from before it is current, unless
        the program has made another one current since, which stays."""
        current = self._current
        graph = self._let_go()
        if not current.is_current():
            current = _CurrentStream(self._stream)
            for other in [found() for found in list(_running.values())]:
                if other is not None and other._thread == self._thread:
                    other._current.replace(self._current)
        try:
            graph.capture_end()
        except BaseException:
            current.restore()
            self._settle(graph)
            raise
        current.restore()
        return graph

    def _let_go(self) -> torch.cuda.CUDAGraph:
        """Gives up the graph: PyTorch keeps memory for random numbers as long as the object
        exists."""
        if self._running:
            self._running = False
            _running.pop(_key(self._stream), None)
        graph = self._graph
        del self._graph
        return graph

    def _settle(self, graph: torch.cuda.CUDAGraph) -> None:
        graph.reset()  # errors keep the object alive, and later versions release its pool here
        self._extension.settle_after_failed_capture(
            self._stream.device_index, self._stream.cuda_stream
        )


def begin_capture(
    *where: torch.cuda.Stream | PoolLike | None,
    stream: torch.cuda.Stream | None = None,
    pool: PoolLike | None = None,
    capture_error_mode: CaptureMode | str = CaptureMode.THREAD_LOCAL,
) -> Capture:
    """Begins to capture on a stream, which becomes the current one: `begin_capture(stream)`,
    `begin_capture(stream, pool)`, `begin_capture(pool)`, or with the names `stream` and `pool`.

    `pool`: a handle, a `CapturePool` or a `torch.cuda.MemPool`; without one the graph has memory of
    its own. Without a stream, the capture is on a side stream of this thread; graphs that share a
    pool share its free memory if they are captured on the same stream. `capture_error_mode`: that
    of `torch.cuda.graph`. Raises `FerroError` without a device, for a sealed pool and for other
    arguments; otherwise PyTorch's error. Then no capture has begun.
    """
    stream, pool = _stream_and_pool("begin_capture", where, stream, pool)
    capture = Capture(pool, capture_error_mode, stream)
    if stream is not None:
        _running[_key(stream)] = lambda: capture
    return capture


def _stream_and_pool(
    function: str, where: Sequence[Any], stream: Any, pool: Any
) -> tuple[torch.cuda.Stream | None, PoolLike | None]:
    """Tells positional arguments apart by their types."""
    import torch

    for given in where:
        if isinstance(given, torch.Stream):
            if stream is not None:
                raise FerroError(f"{function}() got {stream!r} and {given!r}: expected one stream")
            stream = given
        elif given is not None:
            if pool is not None:
                raise FerroError(
                    f"{function}() got {pool!r} and {given!r}: expected a stream and a pool; pass "
                    "a mode as capture_error_mode="
                )
            pool = given
    return check_stream(stream), pool


def end_capture(
    capture: Capture | torch.cuda.Stream | None = None, pool: PoolLike | None = None
) -> CapturedGraph:
    """Calls `Capture.end(pool)` of a capture, or of the capture of `begin_capture()` on a stream;
    None: on the current stream. Raises `FerroError` if there is none."""
    if isinstance(capture, Capture):
        return capture.end(pool)
    require_device("end_capture()")
    import torch

    stream = check_stream(capture) or torch.cuda.current_stream()
    found = _running.get(_key(stream))
    running = None if found is None else found()
    if running is None:
        raise FerroError(f"no capture of begin_capture() runs on {stream}")
    return running.end(pool)


def end_capture_with_pool(
    capture: Capture | torch.cuda.Stream | None, pool: PoolLike
) -> CapturedGraph:
    """`end_capture(capture, pool)`."""
    return end_capture(capture, pool)


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
        *where: torch.cuda.Stream | PoolLike | None,
        stream: torch.cuda.Stream | None = None,
        pool: PoolLike | None = None,
        capture_error_mode: CaptureMode | str = CaptureMode.THREAD_LOCAL,
    ) -> None:
        self._stream, self._pool = _stream_and_pool("CaptureGuard", where, stream, pool)
        self._mode = checked_mode(capture_error_mode)
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
        self._capture = Capture(self._pool, self._mode, self._stream)
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
