"""Captures, replays and drops of graphs in seeded programs."""

from __future__ import annotations

from collections.abc import Callable

from seeded_capture import Body
from seeded_moves import Graph, Moves, Tensor
from seeded_operations import (
    Capture,
    DropGraph,
    EmptyCache,
    Free,
    JoinGroup,
    MIB,
    Replay,
)


class Graphs(Moves):
    """Draws captures into separate and shared pools, replays, and drops."""

    def _plan_capture(self) -> None:
        self._capture_on(self._stream, self._handles, 5, peers=False)

    def _plan_peer_capture(self) -> None:
        self._capture_on(self._peer_stream, self._peer_handles, 3, peers=True)

    def _capture_on(
        self, draw_stream: Callable[[], int], handles: list[int], most: int, *, peers: bool
    ) -> None:
        """Captures on one device, unless it has that many graphs."""
        inputs = self._draw_inputs(peers=peers)
        known = [g for g in self._ordinary_graphs() if self._on_peer(g.stream) == peers]
        if len(known) < most and inputs:
            number, stream = self._number(), draw_stream()
            self._capture(number, stream, self._random.choice([None, *handles]), inputs)

    def _draw_inputs(self, *, peers: bool) -> list[Tensor]:
        """Draws tensors of one device; if there are device scalars, mostly one of them in
        addition."""
        inputs = [t for t in self._some(3, peers=peers) if t.size <= 2 * MIB]
        scalar = self._pick(lambda t: t.scalar is not None and t not in inputs, peers=peers)
        if scalar is not None and self._random.random() < 0.7:
            inputs.append(scalar)
        return inputs

    def _ordinary_graphs(self) -> list[Graph]:
        return [graph for graph in self._graphs.values() if not graph.in_tree]

    def _capture(
        self,
        number: int,
        stream: int,
        handle: int | None,
        inputs: list[Tensor],
        *,
        in_tree: bool = False,
    ) -> Graph:
        pool = -1 - number if handle is None else handle
        planner = self._body(stream, inputs, in_tree=in_tree)
        body, outputs, doomed = planner.draw()
        sources = [t.number for t in inputs]
        apart = pool in self._members
        graph = Graph(number, stream, pool, sources, outputs, body, planner.sizes, in_tree, apart)
        self._graphs[number] = graph
        manager = self._random.random() < 0.3
        self._out.append(Capture(number, stream, handle, manager, body))
        if pool in self._members:
            self._out.append(JoinGroup(graph=number))
        for tensor in inputs:
            tensor.pins += 1
        for output in outputs:
            tensor = planner.tensors[output]
            tensor.graph = number
            tensor.pool = pool if in_tree else None
            tensor.writer, tensor.readers, tensor.content = None, set(), None
            self._tensors[output] = tensor
        # The tensors are freed after the capture, not in it.
        self._out.extend(Free(number, here=in_tree) for number in doomed)
        return graph

    def _body(self, stream: int, inputs: list[Tensor], *, in_tree: bool) -> Body:
        return Body(self, stream, inputs, in_tree=in_tree)

    def _plan_replay(self) -> None:
        if not self._graphs:
            return
        graph = self._random.choice(list(self._graphs.values()))
        self._renew_inputs(graph)
        self._replay(graph)
        self._read_outputs(graph)

    def _renew_inputs(self, graph: Graph) -> None:
        for number in graph.inputs:
            tensor = self._tensors[number]
            if tensor.graph is None and self._random.random() < 0.7:
                renew = self._fill if tensor.scalar is None else self._update
                renew(tensor, self._stream_after(tensor))

    def _read_outputs(self, graph: Graph) -> None:
        for number in graph.outputs:
            if self._tensors[number].content is not None and self._random.random() < 0.6:
                self._read(self._tensors[number], self._stream_after(self._tensors[number]))

    def _replay(self, graph: Graph, stream: int | None = None) -> None:
        touched = self._touched.setdefault(graph.pool, set())
        if stream is None and self._on_peer(graph.stream):
            stream = self._peer_stream()
        elif stream is None:
            stream = self._stream_at_least(max(touched, default=0))
        for other in sorted(touched - {stream}):
            self._wait(stream, other)
        self._touched[graph.pool] = {stream}
        for number in graph.inputs:
            self._access(self._tensors[number], stream, write=False)
        for number in graph.outputs:
            self._access(self._tensors[number], stream, write=True)
        self._out.append(Replay(graph.number, stream))
        # A graph of the same pool that was captured later may keep results in the scratch of this
        # one.
        for later in self._graphs.values():
            if later.pool == graph.pool and later.number > graph.number and not later.apart:
                for number in later.outputs:
                    self._tensors[number].content = None
        for tensor in self._tensors.values():
            if tensor.pool == graph.pool and tensor.number > graph.number:
                tensor.content = None
        self._evaluate(graph)

    def _plan_drop_graph(self) -> None:
        reused = {i for g in self._graphs.values() for i in g.inputs}
        droppable = [g for g in self._ordinary_graphs() if not reused & set(g.outputs)]
        if droppable:
            self._drop(self._random.choice(droppable))

    def _drop(self, graph: Graph) -> None:
        del self._graphs[graph.number]
        if all(other.pool != graph.pool for other in self._graphs.values()):
            self._members.discard(graph.pool)
            # A pool without a user cannot be captured into again.
            for handles in (self._handles, self._peer_handles):
                handles[:] = [h if h != graph.pool else self._number() for h in handles]
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
