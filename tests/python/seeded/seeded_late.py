"""Programs without `record_stream` whose streams wait late for other streams' uses of freed memory.

A caching allocator that keeps free blocks for their own streams serves such a program correctly:
memory that another stream still uses is freed at once, and its stream waits for that use right
before its own next request, of whatever size. In the second variant the host waits instead, at any
time before that request. The planner keeps the uses that each stream has yet to wait for.
"""

from __future__ import annotations

from typing import Any

from seeded_capture import Body
from seeded_moves import Graph, Moves, Tensor
from seeded_operations import (
    EmptyCache,
    Free,
    KIB,
    Limit,
    MIB,
    RecordEvent,
    SyncDevice,
    SyncEvent,
    SyncStream,
    WaitEvent,
)
from seeded_plan import Planner

VARIANTS = ("stream", "host")
"""The waiter: the stream of the memory, or the host."""

COPY_STREAMS = 1
"""The last streams; they allocate nothing outside of captures."""


class LateMoves(Moves):
    """Frees at once, and waits before the next request of the memory's stream."""

    def __init__(self, *args: Any, **words: Any) -> None:
        self._owed: dict[int, list[tuple[int, int | None]]] = {}
        """The work that each stream must wait for: a stream's, up to an event if there is one."""
        super().__init__(*args, **words)

    def _allocate(
        self, size: int, stream: int, mempool: int | None, *, cached: bool = True, raw: bool = False
    ) -> Tensor:
        self._settle(stream)
        return super()._allocate(size, stream, mempool, cached=cached, raw=raw)

    def _free(self, tensor: Tensor, *, by_event: bool = True) -> None:
        for other in sorted(tensor.foreign):
            event = None
            if self._random.random() < 0.5:
                event = self._number()
                self._out.append(RecordEvent(event, other))
            self._owed.setdefault(tensor.home, []).append((other, event))
        del self._tensors[tensor.number]
        self._out.append(Free(tensor.number))

    def _record(self, tensor: Tensor, stream: int) -> None:
        """These programs have no `record_stream`."""

    def _settle(self, stream: int) -> None:
        for other, event in self._owed.pop(stream, ()):
            if self._shape.mistake == "late" and self._random.random() < 0.3:
                continue
            self._wait_late(stream, other, event)

    def _wait_late(self, stream: int, other: int, event: int | None) -> None:
        if event is None:
            self._wait(stream, other)
        else:
            self._out.append(WaitEvent(stream, event))

    def _any_size(self) -> int:
        low, high = self._random.choices(
            [
                (1, 300 * KIB),
                (300 * KIB, 2 * MIB),
                (2 * MIB, 8 * MIB),
                (8 * MIB, 24 * MIB),
            ],
            [20, 40, 30, 10],
        )[0]
        return self._random.randint(low, high)


class LateBody(LateMoves, Body):
    """The body of a graph, in which the streams of the capture wait late for each other."""


class LatePlanner(LateMoves, Planner):
    """Draws one program with late waits."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._choices += [(20, "late"), (4, "limit")]
        if self._shape.late_waits == "host":
            self._choices.append((6, "early_settlement"))

    # ---- waits

    def _wait_late(self, stream: int, other: int, event: int | None) -> None:
        if self._shape.late_waits == "stream":
            super()._wait_late(stream, other, event)
        elif self._random.random() < 0.1:
            self._sync_device()
        else:
            self._out.append(SyncStream(other) if event is None else SyncEvent(event))

    def _sync_device(self) -> None:
        self._out.append(SyncDevice())
        self._owed.clear()

    def _plan_early_settlement(self) -> None:
        """The host waits some time before the request that requires it."""
        if self._owed:
            self._settle(self._random.choice(sorted(self._owed)))

    def _room(self, size: int, *, source: bool) -> int:
        before = len(self._out)
        slot = super()._room(size, source=source)
        if any(isinstance(operation, SyncDevice) for operation in self._out[before:]):
            self._owed.clear()
        return slot

    # ---- graphs

    def _capture(self, *args: Any, **words: Any) -> Graph:
        # A stream that captures cannot wait for work outside the capture.
        for stream in sorted(self._owed):
            self._settle(stream)
        return super()._capture(*args, **words)

    def _body(self, *args: Any, **words: Any) -> Body:
        return LateBody(self, *args, **words)

    # ---- operations

    def _home(self) -> int:
        return self._random.randrange(self._shape.streams - COPY_STREAMS)

    def _plan_handoff(self) -> None:
        self._plan_late()

    def _plan_late(self) -> None:
        """A tensor is freed with a use on another stream; then several streams request memory."""
        size, home = self._size(), self._home()
        while self._live_bytes() + 4 * size > self._shape.live_bytes:
            if not self._plan_free():
                return
        user = self._random.choice([s for s in range(self._shape.streams) if s != home])
        result = None
        if self._random.random() < 0.7:
            result = self._allocate(size, self._home(), None)
            self._memset(result, user)
        first = self._allocate(size, home, self._some_mempool())
        self._write(first, home)
        if result is not None:
            self._copy(first, result, user)
        else:
            self._read(first, user)
        # Mostly the memory's own stream is idle when other streams request memory.
        if self._random.random() < 0.5:
            self._out.append(SyncStream(home))
        self._free(first)
        if self._shape.empty_cache and self._random.random() < 0.05:
            self._out.append(EmptyCache())
        for _ in range(self._random.randint(0, 2)):
            other = self._home()
            if other != home:
                later = self._allocate(self._random.randint(1, 2 * size), other, None)
                self._write(later, other)
        if self._random.random() < 0.5:
            self._write(self._allocate(size, home, None), home)
        if result is not None and result.content is not None:
            self._read(result, user)

    def _write(self, tensor: Tensor, stream: int) -> None:
        if self._random.random() < 0.7:
            self._memset(tensor, stream)
        else:
            self._fill(tensor, stream)

    def _some_mempool(self) -> int | None:
        use = self._mempools and self._random.random() < 0.15
        return self._random.choice(self._mempools) if use else None

    def _plan_limit(self) -> None:
        """Sets the limit slightly above the live memory, or to all of the device."""
        slack = self._random.randint(1, 24) * MIB if self._random.random() < 0.8 else None
        self._out.append(Limit(slack))

    def _plan_end(self) -> None:
        self._out.append(Limit(None))
        super()._plan_end()
