"""Programs decided by a seed alone: what is allocated, moved, waited for, captured and freed.

The planner follows PyTorch's rules for streams, so a program is correct whatever allocator runs
it: a stream waits for the streams whose work it depends on, and memory that another stream used is
freed after `record_stream` or after its own stream has waited. It knows what every byte of every
tensor must be at every moment, which is what `Read` carries. It imports no torch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

KIB, MIB = 1 << 10, 1 << 20

HOST_BYTES = 48 * MIB
"""Room for pinned sources, and as much again for what is read back, between two drains."""


@dataclass(frozen=True)
class Piece:
    """`length` bytes of the pattern number `tag` from `offset` on; or one byte value throughout."""

    tag: int
    offset: int
    length: int
    byte: int | None = None


Content = tuple[Piece, ...]


def part(content: Content, offset: int, length: int) -> Content:
    pieces = []
    for piece in content:
        skipped = min(offset, piece.length)
        taken = min(piece.length - skipped, length)
        if taken:
            pieces.append(Piece(piece.tag, piece.offset + skipped, taken, piece.byte))
        offset -= skipped
        length -= taken
    return tuple(pieces)


def overwritten(old: Content | None, size: int, offset: int, new: Content) -> Content | None:
    """`new` over `old` from `offset` on; None when that leaves unknown bytes."""
    length = sum(piece.length for piece in new)
    if length == size:
        return new
    if old is None:
        return None
    end = offset + length
    return part(old, 0, offset) + new + part(old, end, size - end)


# ---- operations; numbers name tensors, streams, pools and graphs


@dataclass(frozen=True)
class Alloc:
    tensor: int
    size: int
    stream: int
    mempool: int | None = None


@dataclass(frozen=True)
class Fill:
    """An asynchronous copy of a whole pattern from pinned memory."""

    tensor: int
    stream: int
    tag: int
    slot: int
    size: int


@dataclass(frozen=True)
class Copy:
    source: int
    target: int
    stream: int
    source_offset: int
    target_offset: int
    length: int


@dataclass(frozen=True)
class Memset:
    tensor: int
    stream: int
    byte: int


@dataclass(frozen=True)
class Wait:
    """`stream` waits for all work that `other` was given so far."""

    stream: int
    other: int


@dataclass(frozen=True)
class RecordStream:
    tensor: int
    stream: int


@dataclass(frozen=True)
class Free:
    tensor: int


@dataclass(frozen=True)
class Read:
    """An asynchronous copy to pinned memory, compared with `expected` once it is there."""

    tensor: int
    stream: int
    slot: int
    expected: Content


@dataclass(frozen=True)
class SyncDevice:
    pass


@dataclass(frozen=True)
class SyncStream:
    stream: int


@dataclass(frozen=True)
class EmptyCache:
    pass


@dataclass(frozen=True)
class AskStatistics:
    """Which also makes an allocator look for frees that are complete."""


@dataclass(frozen=True)
class CheckInvariants:
    pass


@dataclass(frozen=True)
class MakeMempool:
    mempool: int


@dataclass(frozen=True)
class DropMempool:
    mempool: int


@dataclass(frozen=True)
class Capture:
    graph: int
    stream: int
    handle: int | None
    """Which `graph_pool_handle()` the graph shares; None: a pool of its own."""
    with_context_manager: bool
    body: tuple[Operation, ...]


@dataclass(frozen=True)
class Replay:
    graph: int
    stream: int


@dataclass(frozen=True)
class DropGraph:
    graph: int


Operation = (
    Alloc
    | Fill
    | Copy
    | Memset
    | Wait
    | RecordStream
    | Free
    | Read
    | SyncDevice
    | SyncStream
    | EmptyCache
    | AskStatistics
    | CheckInvariants
    | MakeMempool
    | DropMempool
    | Capture
    | Replay
    | DropGraph
)


@dataclass(frozen=True)
class Step:
    thread: int
    operation: Operation


@dataclass(frozen=True)
class Shape:
    """What programs consist of."""

    streams: int = 4
    threads: int = 2
    graphs: bool = True
    mempools: bool = True
    empty_cache: bool = True
    live_bytes: int = 64 * MIB
    orderly_drops: bool = False
    """Whether a graph's own stream waits for the last replay before the graph is dropped."""
    mistake: str = ""
    """`wait` or `record_stream`: what the program leaves out now and then."""


@dataclass
class Tensor:
    number: int
    size: int
    home: int
    content: Content | None = None
    writer: int | None = None
    readers: set[int] = field(default_factory=set)
    foreign: set[int] = field(default_factory=set)
    """Streams that used it, other than its own, and that nothing covers yet."""
    recorded: set[int] = field(default_factory=set)
    pins: int = 0
    """Graphs that read it on replay."""
    graph: int | None = None
    """The graph that writes it on replay."""


@dataclass
class Graph:
    number: int
    stream: int
    pool: int
    inputs: list[int]
    outputs: list[int]
    body: tuple[Operation, ...]
    sizes: dict[int, int]


class Planner:
    """Draws one program. `steps()` yields it; the same arguments give the same program."""

    def __init__(self, seed: int, steps: int, shape: Shape) -> None:
        self._random = random.Random(seed)
        self._wanted = steps
        self._shape = shape
        self._out: list[Operation] = []
        self._tensors: dict[int, Tensor] = {}
        self._graphs: dict[int, Graph] = {}
        # Streams with work on the memory of a graph pool since its last replay.
        self._touched: dict[int, set[int]] = {}
        self._mempools: list[int] = []
        self._next = 2
        self._handles = [1, 2]
        self._source_used = 0
        self._result_used = 0
        # Work that flows from low to high streams lets the low ones run ahead; without such a trend
        # the streams wait for each other so often that no order but the submitted one is left.
        self._forward = self._random.choice([0.95, 0.8, 0.4])
        self._palette = [self._any_size() for _ in range(6)]
        self._choices: list[tuple[int, str]] = [
            (20, "new"),
            (12, "handoff"),
            (2, "large"),
            (22, "copy"),
            (6, "memset"),
            (14, "read"),
            (22, "free"),
            (1, "sync_stream"),
            (1, "check"),
            (2, "ask_statistics"),
        ]
        if shape.graphs:
            self._choices += [(2, "capture"), (6, "replay"), (1, "drop_graph")]
        if shape.mempools:
            self._choices += [(1, "mempool")]
        if shape.empty_cache:
            self._choices += [(1, "empty_cache")]

    def steps(self) -> Iterator[Step]:
        weights = [weight for weight, _ in self._choices]
        names = [name for _, name in self._choices]
        done = 0
        while done < self._wanted:
            name = self._random.choices(names, weights)[0]
            getattr(self, f"_plan_{name}")()
            yield from self._flush()
            done += 1
        self._plan_end()
        yield from self._flush()

    def _flush(self) -> Iterator[Step]:
        for operation in self._out:
            yield Step(self._random.randrange(self._shape.threads), operation)
        self._out.clear()

    # ---- what happens

    def _plan_new(self) -> None:
        size = self._size()
        while self._live_bytes() + size > self._shape.live_bytes:
            if not self._plan_free():
                return
        use_mempool = self._mempools and self._random.random() < 0.15
        mempool = self._random.choice(self._mempools) if use_mempool else None
        tensor = self._allocate(size, self._home(), mempool)
        # Nearly always filled by its own stream; sometimes by another at once.
        stream = tensor.home if self._random.random() < 0.8 else self._stream_after(tensor)
        self._fill(tensor, stream)

    def _plan_handoff(self) -> None:
        """Another stream uses a tensor that is freed at once, and its size is asked for again."""
        size, home = self._size(), self._random.randrange(self._shape.streams - 1)
        if self._live_bytes() + 2 * size > self._shape.live_bytes:
            self._plan_free()
            return
        first = self._allocate(size, home, None)
        self._fill(first, home)
        user = self._random.randrange(home + 1, self._shape.streams)
        self._read(first, user)
        self._free(first, by_event=False)
        self._fill(self._allocate(size, home, None), home)

    def _plan_large(self) -> None:
        """Whole pages are freed with work on them, and often given back at once."""
        size = self._random.randint(4 * MIB, 12 * MIB)
        source = self._pick(lambda t: t.content is not None)
        if source is None or self._live_bytes() + size > self._shape.live_bytes:
            self._plan_free()
            return
        large = self._allocate(size, self._home(), None)
        self._memset(large, large.home)
        self._copy(source, large, large.home)
        self._read(large, large.home)
        self._free(large)
        if self._shape.empty_cache and self._random.random() < 0.5:
            self._out.append(EmptyCache())

    def _plan_copy(self) -> None:
        source = self._pick(lambda t: t.content is not None)
        target = self._pick(lambda t: t.graph is None and t is not source)
        if source is None or target is None:
            return
        self._copy(source, target, self._stream_after(source, target))

    def _plan_memset(self) -> None:
        target = self._pick(lambda t: t.graph is None)
        if target is not None:
            self._memset(target, self._stream_after(target))

    def _plan_read(self) -> None:
        tensor = self._pick(lambda t: t.content is not None)
        if tensor is not None:
            self._read(tensor, self._stream_after(tensor))

    def _plan_free(self) -> bool:
        tensor = self._pick(lambda t: not t.pins and t.graph is None)
        if tensor is None:
            return False
        if tensor.content is not None and self._random.random() < 0.5:
            self._read(tensor, self._stream_after(tensor))
        self._free(tensor)
        return True

    def _plan_sync_stream(self) -> None:
        self._out.append(SyncStream(self._stream()))

    def _plan_check(self) -> None:
        self._out.append(CheckInvariants())

    def _plan_ask_statistics(self) -> None:
        self._out.append(AskStatistics())

    def _plan_empty_cache(self) -> None:
        self._out.append(EmptyCache())

    def _plan_mempool(self) -> None:
        if len(self._mempools) >= 2:
            gone = self._mempools.pop(self._random.randrange(2))
            self._out.append(DropMempool(gone))
        else:
            self._mempools.append(self._number())
            self._out.append(MakeMempool(self._mempools[-1]))

    def _plan_capture(self) -> None:
        inputs = [t for t in self._some(3) if t.size <= 2 * MIB]
        if len(self._graphs) >= 5 or not inputs:
            return
        number, stream = self._number(), self._stream()
        handle = self._random.choice([None, *self._handles])
        pool = -1 - number if handle is None else handle
        planner = _Body(self, stream, inputs)
        body, outputs, doomed = planner.draw()
        graph = Graph(
            number, stream, pool, [t.number for t in inputs], outputs, body, planner.sizes
        )
        self._graphs[number] = graph
        manager = self._random.random() < 0.3
        self._out.append(Capture(number, stream, handle, manager, body))
        for tensor in inputs:
            tensor.pins += 1
        for output in outputs:
            tensor = planner.tensors[output]
            tensor.graph = number
            tensor.writer, tensor.readers, tensor.content = None, set(), None
            self._tensors[output] = tensor
        # Freed after the capture, not in it.
        self._out.extend(Free(number) for number in doomed)

    def _plan_replay(self) -> None:
        if not self._graphs:
            return
        graph = self._random.choice(list(self._graphs.values()))
        for number in graph.inputs:
            tensor = self._tensors[number]
            if tensor.graph is None and self._random.random() < 0.7:
                self._fill(tensor, self._stream_after(tensor))
        touched = self._touched.setdefault(graph.pool, set())
        stream = self._stream_at_least(max(touched, default=0))
        for other in sorted(touched - {stream}):
            self._wait(stream, other)
        self._touched[graph.pool] = {stream}
        for number in graph.inputs:
            self._access(self._tensors[number], stream, write=False)
        for number in graph.outputs:
            self._access(self._tensors[number], stream, write=True)
        self._out.append(Replay(graph.number, stream))
        # A graph of the same pool that was captured later may live where this one works.
        for later in self._graphs.values():
            if later.pool == graph.pool and later.number > graph.number:
                for number in later.outputs:
                    self._tensors[number].content = None
        self._evaluate(graph)
        for number in graph.outputs:
            if self._tensors[number].content is not None and self._random.random() < 0.6:
                self._read(self._tensors[number], self._stream_after(self._tensors[number]))

    def _plan_drop_graph(self) -> None:
        reused = {i for g in self._graphs.values() for i in g.inputs}
        droppable = [g for g in self._graphs.values() if not reused & set(g.outputs)]
        if droppable:
            self._drop(self._random.choice(droppable))

    def _drop(self, graph: Graph) -> None:
        del self._graphs[graph.number]
        if all(other.pool != graph.pool for other in self._graphs.values()):
            # A pool that nobody holds any more cannot be captured into again.
            self._handles = [h if h != graph.pool else self._number() for h in self._handles]
        if self._shape.orderly_drops:
            for other in sorted(self._touched.get(graph.pool, set()) - {graph.stream}):
                self._wait(graph.stream, other)
        for number in graph.inputs:
            self._tensors[number].pins -= 1
        first = self._random.random() < 0.5
        if first:
            self._out.append(DropGraph(graph.number))
        for number in graph.outputs:
            self._free(self._tensors[number])
        if not first:
            self._out.append(DropGraph(graph.number))
        if self._shape.empty_cache and self._random.random() < 0.5:
            self._out.append(EmptyCache())

    def _plan_end(self) -> None:
        """Reads what is left, gives everything back and drains."""
        for tensor in list(self._tensors.values()):
            if tensor.content is not None:
                self._read(tensor, self._stream_after(tensor))
        for graph in sorted(self._graphs.values(), key=lambda g: -g.number):
            self._drop(graph)
        for tensor in list(self._tensors.values()):
            self._free(tensor)
        self._out.extend(DropMempool(number) for number in self._mempools)
        self._out += [SyncDevice(), EmptyCache(), CheckInvariants()]

    # ---- operations with their order

    def _allocate(self, size: int, stream: int, mempool: int | None) -> Tensor:
        # Another stream must come after its own, where the memory may have been in use before.
        tensor = Tensor(self._number(), size, stream, writer=stream)
        self._tensors[tensor.number] = tensor
        self._out.append(Alloc(tensor.number, size, stream, mempool))
        return tensor

    def _fill(self, tensor: Tensor, stream: int) -> None:
        slot = self._room(tensor.size, source=True)
        self._access(tensor, stream, write=True)
        tag = self._number()
        self._out.append(Fill(tensor.number, stream, tag, slot, tensor.size))
        tensor.content = (Piece(tag, 0, tensor.size),)

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
            if by_event and self._random.random() > self._forward:
                self._wait(tensor.home, stream)
            else:
                self._record(tensor, stream)
        del self._tensors[tensor.number]
        self._out.append(Free(tensor.number))

    def _access(self, tensor: Tensor, stream: int, *, write: bool) -> None:
        before = {tensor.writer} | (tensor.readers if write else set())
        for other in sorted(s for s in before if s is not None and s != stream):
            self._wait(stream, other)
        if write:
            tensor.writer, tensor.readers = stream, set()
        else:
            tensor.readers.add(stream)
        if tensor.graph is not None and tensor.graph in self._graphs:
            self._touched.setdefault(self._graphs[tensor.graph].pool, set()).add(stream)
        if stream != tensor.home:
            tensor.foreign.add(stream)
            if stream not in tensor.recorded and self._random.random() < 0.4:
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
        """What the graph's tensors hold after a replay on the inputs of this moment."""
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
        """Mostly one that comes after the streams that use these tensors, often the last itself."""
        used = [t.home for t in tensors]
        used += [s for t in tensors for s in (t.writer, *t.readers) if s is not None]
        return max(used) if self._random.random() < 0.3 else self._stream_at_least(max(used))

    def _size(self) -> int:
        """Mostly one of a few, so that freed blocks fit again exactly."""
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

    def _pick(self, allowed: object) -> Tensor | None:
        assert callable(allowed)
        candidates = [tensor for tensor in self._tensors.values() if allowed(tensor)]
        return self._random.choice(candidates) if candidates else None

    def _some(self, most: int) -> list[Tensor]:
        known = list(self._tensors.values())
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


class _Body(Planner):
    """Draws what a graph captures, on its stream and on streams forked from it."""

    def __init__(self, outer: Planner, stream: int, inputs: list[Tensor]) -> None:
        super().__init__(outer._random.getrandbits(32), 0, outer._shape)
        self._outer = outer
        self._capturing = [stream]
        # In the capture no earlier work counts; what the inputs see of it is settled on replay.
        views = [Tensor(t.number, t.size, -1, (Piece(t.number, 0, t.size),)) for t in inputs]
        self._inputs = {view.number: view for view in views}
        self.tensors: dict[int, Tensor] = {}
        self.sizes = {tensor.number: tensor.size for tensor in inputs}

    def draw(self) -> tuple[tuple[Operation, ...], list[int], list[int]]:
        """The body, the tensors it leaves for replays, those to be freed after the capture."""
        main = self._capturing[0]
        for _ in range(self._random.randint(3, 14)):
            name = self._random.choice(
                ["fork", "new", "new", "copy", "memset", "drop", "handoff", "handoff"]
            )
            getattr(self, f"_body_{name}")()
        if not self._tensors:
            self._body_new()
        kept = list(self._tensors.values())
        self._random.shuffle(kept)
        outputs, rest = kept[:2], kept[2:]
        doomed = rest[: len(rest) // 2]
        for tensor in rest[len(rest) // 2 :]:
            self._free(tensor)
        for stream in self._capturing[1:]:
            self._out.append(Wait(main, stream))
        for tensor in [*outputs, *doomed]:
            # The end of the capture joins its streams.
            tensor.foreign.clear()
            tensor.recorded.clear()
        return tuple(self._out), [t.number for t in outputs], [t.number for t in doomed]

    def _body_fork(self) -> None:
        free = [s for s in range(self._shape.streams) if s not in self._capturing]
        if free and len(self._capturing) < 3:
            side = self._random.choice(free)
            self._out.append(Wait(side, self._random.choice(self._capturing)))
            self._capturing.append(side)

    def _body_new(self) -> None:
        sources = [*self._inputs.values(), *self._tensors.values()]
        source = self._random.choice([s for s in sources if s.content is not None])
        tensor = self._allocate(self._random.randint(1, 2 * source.size), self._stream(), None)
        self.tensors[tensor.number] = tensor
        self.sizes[tensor.number] = tensor.size
        if tensor.size > source.size:
            self._memset(tensor, tensor.home)
        self._copy(source, tensor, self._stream())
        # Copies of a part leave unknown bytes; a body must define all it hands on.
        if tensor.content is None:
            self._memset(tensor, tensor.home)

    def _body_copy(self) -> None:
        source = self._pick(lambda t: True)
        target = self._pick(lambda t: t is not source)
        if source is not None and target is not None:
            self._copy(source, target, self._stream())

    def _body_memset(self) -> None:
        target = self._pick(lambda t: True)
        if target is not None:
            self._memset(target, self._stream())

    def _body_handoff(self) -> None:
        """As in eager code: what is freed here must not be handed out before the streams join."""
        source = self._pick(lambda t: True)
        if source is None or len(self._capturing) < 2:
            return
        first = self._allocate(source.size, self._capturing[0], None)
        self.sizes[first.number] = first.size
        self._memset(first, first.home)
        self._copy(source, first, first.home)
        second = self._allocate(source.size, self._capturing[-1], None)
        self.tensors[second.number] = second
        self.sizes[second.number] = second.size
        self._memset(second, second.home)
        self._copy(first, second, second.home)
        self._free(first, by_event=False)
        third = self._allocate(source.size, self._capturing[0], None)
        self.tensors[third.number] = third
        self.sizes[third.number] = third.size
        self._memset(third, third.home)

    def _body_drop(self) -> None:
        tensor = self._pick(lambda t: True)
        if tensor is not None:
            self._free(tensor)

    def _number(self) -> int:
        return self._outer._number()

    def _stream(self) -> int:
        return self._random.choice(self._capturing)
