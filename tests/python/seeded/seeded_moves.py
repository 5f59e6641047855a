"""Single operations with the order that PyTorch's rules require, and the contents of tensors.

Whole programs and the bodies of graphs share this code.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

from seeded_operations import (
    Alloc,
    Content,
    Copy,
    Fill,
    Free,
    HOST_BYTES,
    KIB,
    MIB,
    Memset,
    Operation,
    Piece,
    Read,
    RecordStream,
    SCALARS,
    Shape,
    SyncDevice,
    UpdateScalar,
    Wait,
    overwritten,
    part,
    scalar_content,
)


@dataclass
class Tensor:
    number: int
    size: int
    home: int
    content: Content | None = None
    writer: int | None = None
    readers: set[int] = field(default_factory=set)
    foreign: set[int] = field(default_factory=set)
    """Streams other than its own that used it, and that its own has not waited for."""
    recorded: set[int] = field(default_factory=set)
    pins: int = 0
    """Graphs that read it on replay."""
    graph: int | None = None
    """The graph that writes it on replay."""
    cached: bool = True
    shared: bool = False
    """If set, only waits cover its uses on other streams."""
    raw: bool = False
    pool: int | None = None
    """The pool with checkpoints that contains it."""
    scalar: str | None = None
    """Its type, if it is the memory of a `DeviceScalar`."""


@dataclass
class Graph:
    number: int
    stream: int
    pool: int
    inputs: list[int]
    outputs: list[int]
    body: tuple[Operation, ...]
    sizes: dict[int, int]
    in_tree: bool = False
    """Whether its pool may be set back to a checkpoint."""
    apart: bool = False
    """Whether no other graph writes its results, in any order of replays."""


class Moves:
    """The state of tensors, graphs and pools after the operations drawn so far."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self._random = random.Random(seed)
        self._shape = shape
        self._out: list[Operation] = []
        self._tensors: dict[int, Tensor] = {}
        self._graphs: dict[int, Graph] = {}
        # Streams with work on the memory of a graph pool since its last replay.
        self._touched: dict[int, set[int]] = {}
        self._mempools: list[int] = []
        self._members: set[int] = set()
        """Pools of the exclusive group."""
        self._next = 3
        self._handles = [1, 2]
        self._peer_handles = [3]
        self._source_used = 0
        self._result_used = 0
        # Work that flows from low to high streams lets the low ones run ahead; without such a trend
        # the streams wait for each other so often that only the submitted order is possible.
        self._forward = self._random.choice([0.95, 0.8, 0.4])
        self._palette = [self._any_size() for _ in range(6)]

    def _allocate(
        self, size: int, stream: int, mempool: int | None, *, cached: bool = True, raw: bool = False
    ) -> Tensor:
        # Another stream must wait for its own, on which the memory may have been in use before.
        tensor = Tensor(self._number(), size, stream, writer=stream, cached=cached, raw=raw)
        # `record_stream` does nothing for memory that no tensor owns.
        tensor.shared = raw
        self._tensors[tensor.number] = tensor
        self._out.append(Alloc(tensor.number, size, stream, mempool, cached, raw))
        return tensor

    def _fill(self, tensor: Tensor, stream: int) -> None:
        slot = self._room(tensor.size, source=True)
        self._access(tensor, stream, write=True)
        tag = self._number()
        self._out.append(Fill(tensor.number, stream, tag, slot, tensor.size))
        tensor.content = (Piece(tag, 0, tensor.size),)

    def _update(self, tensor: Tensor, stream: int) -> None:
        """Writes another value to a device scalar."""
        assert tensor.scalar is not None
        value = self._value(tensor.scalar)
        self._access(tensor, stream, write=True)
        late = self._shape.mistake == "update"
        self._out.append(UpdateScalar(tensor.number, stream, value, late))
        tensor.content = scalar_content(tensor.scalar, value)

    def _copy(self, source: Tensor, target: Tensor, stream: int) -> None:
        copy = self._copy_range(source, target, stream)
        self._access(source, stream, write=False)
        self._access(target, stream, write=True)
        self._out.append(copy)
        assert source.content is not None
        moved = part(source.content, copy.source_offset, copy.length)
        target.content = overwritten(target.content, target.size, copy.target_offset, moved)

    def _copy_range(self, source: Tensor, target: Tensor, stream: int) -> Copy:
        length = min(source.size, target.size)
        if self._random.random() < 0.3:
            length = self._random.randint(1, length)
        source_offset = self._random.randint(0, source.size - length)
        target_offset = self._random.randint(0, target.size - length)
        return Copy(source.number, target.number, stream, source_offset, target_offset, length)

    def _memset(self, target: Tensor, stream: int) -> None:
        self._access(target, stream, write=True)
        byte = self._random.randrange(256)
        self._out.append(Memset(target.number, stream, byte))
        target.content = (Piece(0, 0, target.size, byte),)

    def _read(self, tensor: Tensor, stream: int) -> None:
        assert tensor.content is not None
        slot = self._room(tensor.size, source=False)
        self._access(tensor, stream, write=False)
        self._out.append(Read(tensor.number, stream, slot, tensor.content))

    def _free(self, tensor: Tensor, *, by_event: bool = True) -> None:
        for stream in sorted(tensor.foreign - tensor.recorded):
            if tensor.shared or (by_event and self._random.random() > self._forward):
                self._wait(tensor.home, stream)
            else:
                self._record(tensor, stream)
        del self._tensors[tensor.number]
        self._out.append(Free(tensor.number, here=tensor.pool is not None))

    def _access(self, tensor: Tensor, stream: int, *, write: bool) -> None:
        before = {tensor.writer} | (tensor.readers if write else set())
        for other in sorted(s for s in before if s is not None and s != stream):
            self._wait(stream, other)
        if write:
            tensor.writer, tensor.readers = stream, set()
        else:
            tensor.readers.add(stream)
        if tensor.pool is not None:
            self._touched.setdefault(tensor.pool, set()).add(stream)
        elif tensor.graph is not None and tensor.graph in self._graphs:
            self._touched.setdefault(self._graphs[tensor.graph].pool, set()).add(stream)
        if stream != tensor.home:
            tensor.foreign.add(stream)
            undecided = stream not in tensor.recorded and not tensor.shared
            if undecided and self._random.random() < 0.4:
                self._record(tensor, stream)

    def _wait(self, stream: int, other: int) -> None:
        if self._shape.mistake == "wait" and self._random.random() < 0.3:
            return
        self._out.append(Wait(stream, other))

    def _record(self, tensor: Tensor, stream: int) -> None:
        tensor.recorded.add(stream)
        if self._shape.mistake == "record_stream" and self._random.random() < 0.5:
            return
        self._out.append(RecordStream(tensor.number, stream))

    def _evaluate(self, graph: Graph) -> None:
        """Computes the contents of the graph's tensors after a replay on the current inputs."""
        contents = {number: self._tensors[number].content for number in graph.inputs}
        for operation in graph.body:
            if isinstance(operation, Copy):
                source = contents.get(operation.source)
                old, size = contents.get(operation.target), graph.sizes[operation.target]
                if source is None:
                    contents[operation.target] = None
                    continue
                moved = part(source, operation.source_offset, operation.length)
                offset = operation.target_offset
                contents[operation.target] = overwritten(old, size, offset, moved)
            elif isinstance(operation, Memset):
                size = graph.sizes[operation.tensor]
                contents[operation.tensor] = (Piece(0, 0, size, operation.byte),)
        for number in graph.outputs:
            self._tensors[number].content = contents.get(number)

    # ---- draws

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _stream(self) -> int:
        return self._random.randrange(self._shape.streams)

    def _home(self) -> int:
        return min(self._stream(), self._stream())

    def _stream_at_least(self, lowest: int) -> int:
        if self._random.random() < self._forward:
            return self._random.randrange(lowest, self._shape.streams)
        return self._stream()

    def _stream_after(self, *tensors: Tensor) -> int:
        """Mostly a stream after those that use these tensors, often the last of them."""
        if self._is_peer(tensors[0]):
            return self._peer_stream()
        used = [t.home for t in tensors]
        used += [s for t in tensors for s in (t.writer, *t.readers) if s is not None]
        return max(used) if self._random.random() < 0.3 else self._stream_at_least(max(used))

    def _peer_stream(self) -> int:
        return self._shape.streams + self._random.randrange(self._shape.streams)

    def _is_peer(self, tensor: Tensor) -> bool:
        """Whether it is on the second device."""
        return self._on_peer(tensor.home)

    def _on_peer(self, stream: int) -> bool:
        return stream >= self._shape.streams

    def _value(self, dtype: str) -> float:
        """Any value that a device scalar of this type can hold."""
        if dtype.startswith("float"):
            return self._random.uniform(-1e9, 1e9)
        layout = SCALARS[dtype]
        (value,) = struct.unpack(layout, self._random.randbytes(struct.calcsize(layout)))
        return int(value)

    def _size(self) -> int:
        """Mostly one of a few sizes, so that freed blocks fit again exactly."""
        return (
            self._random.choice(self._palette) if self._random.random() < 0.7 else self._any_size()
        )

    def _any_size(self) -> int:
        low, high = self._random.choices(
            [
                (1, 2 * KIB),
                (2 * KIB, 64 * KIB),
                (64 * KIB, MIB),
                (MIB, 6 * MIB),
                (6 * MIB, 14 * MIB),
            ],
            [40, 30, 20, 9, 1],
        )[0]
        return self._random.randint(low, high)

    def _live_bytes(self) -> int:
        return sum(tensor.size for tensor in self._tensors.values())

    def _pick(self, allowed: object, *, peers: bool = False) -> Tensor | None:
        assert callable(allowed)
        known = [tensor for tensor in self._tensors.values() if self._is_peer(tensor) == peers]
        candidates = [tensor for tensor in known if allowed(tensor)]
        return self._random.choice(candidates) if candidates else None

    def _some(self, most: int, *, peers: bool = False) -> list[Tensor]:
        """Picks tensors of one device that are in no pool with checkpoints."""
        known = [t for t in self._tensors.values() if self._is_peer(t) == peers and t.pool is None]
        return self._random.sample(known, min(len(known), self._random.randint(1, most)))

    def _room(self, size: int, *, source: bool) -> int:
        """An offset in the pinned memory; everything is drained when it is used up."""
        rounded = -(-size // 64) * 64
        used = self._source_used if source else self._result_used
        if used + rounded > HOST_BYTES:
            self._out.append(SyncDevice())
            self._source_used = self._result_used = used = 0
        if source:
            self._source_used = used + rounded
        else:
            self._result_used = used + rounded
        return used
