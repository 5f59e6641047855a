"""Programs decided by a seed alone: what is allocated, moved, waited for, captured and freed.

The planner follows PyTorch's rules for streams, so a program is correct whatever allocator runs
it: a stream waits for the streams whose work it depends on, and memory that another stream used is
freed after `record_stream` or after its own stream has waited. It knows what every byte of every
tensor must be at every moment, which is what `Read` carries. It imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator

from seeded_capture import Body
from seeded_moves import Graph, Moves
from seeded_operations import (
    AskStatistics,
    Capture,
    CheckInvariants,
    DropGraph,
    DropMempool,
    EmptyCache,
    Free,
    MIB,
    MakeMempool,
    RecordHistory,
    Replay,
    Shape,
    Share,
    Step,
    Switch,
    SyncDevice,
    SyncStream,
)


class Planner(Moves):
    """Draws one program. `steps()` yields it; the same arguments give the same program."""

    def __init__(self, seed: int, steps: int, shape: Shape) -> None:
        super().__init__(seed, shape)
        self._wanted = steps
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
        if "history" in shape.extras:
            self._choices += [(1, "history")]
        if "sharing" in shape.extras:
            self._choices += [(2, "share")]
        if "switches" in shape.extras:
            self._choices += [(1, "switch")]

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
        extras = self._shape.extras
        cached = mempool is not None or "uncached" not in extras or self._random.random() < 0.9
        tensor = self._allocate(size, self._home(), mempool, cached=cached)
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
            own = "own_pools" in self._shape.extras and self._random.random() < 0.5
            self._out.append(MakeMempool(self._mempools[-1], own))

    def _plan_history(self) -> None:
        self._out.append(RecordHistory(self._random.random() < 0.7))

    def _plan_share(self) -> None:
        tensor = self._pick(lambda t: t.cached and t.graph is None)
        if tensor is not None:
            tensor.shared = True
            self._out.append(Share(tensor.number, tensor.home))

    def _plan_switch(self) -> None:
        self._out.append(Switch())

    def _plan_capture(self) -> None:
        inputs = [t for t in self._some(3) if t.size <= 2 * MIB]
        if len(self._graphs) >= 5 or not inputs:
            return
        number, stream = self._number(), self._stream()
        handle = self._random.choice([None, *self._handles])
        pool = -1 - number if handle is None else handle
        planner = Body(self, stream, inputs)
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
