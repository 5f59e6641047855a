"""Graphs of seeded programs: what is captured, replayed and dropped, and when."""

from __future__ import annotations

from seeded_capture import Body
from seeded_moves import Graph, Moves, Tensor
from seeded_operations import (
    Capture,
    DropGraph,
    EmptyCache,
    Free,
    MIB,
    Replay,
)


class Graphs(Moves):
    """Captures into pools of their own and into shared ones, replays and drops."""

    def _plan_capture(self) -> None:
        inputs = [t for t in self._some(3) if t.size <= 2 * MIB]
        if len(self._ordinary_graphs()) >= 5 or not inputs:
            return
        number, stream = self._number(), self._stream()
        self._capture(number, stream, self._random.choice([None, *self._handles]), inputs)

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
        planner = Body(self, stream, inputs, in_tree=in_tree)
        body, outputs, doomed = planner.draw()
        sources = [t.number for t in inputs]
        graph = Graph(number, stream, pool, sources, outputs, body, planner.sizes, in_tree)
        self._graphs[number] = graph
        manager = self._random.random() < 0.3
        self._out.append(Capture(number, stream, handle, manager, body))
        for tensor in inputs:
            tensor.pins += 1
        for output in outputs:
            tensor = planner.tensors[output]
            tensor.graph = number
            tensor.pool = pool if in_tree else None
            tensor.writer, tensor.readers, tensor.content = None, set(), None
            self._tensors[output] = tensor
        # Freed after the capture, not in it.
        self._out.extend(Free(number, here=in_tree) for number in doomed)
        return graph

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
        for tensor in self._tensors.values():
            if tensor.pool == graph.pool and tensor.number > graph.number:
                tensor.content = None
        self._evaluate(graph)
        for number in graph.outputs:
            if self._tensors[number].content is not None and self._random.random() < 0.6:
                self._read(self._tensors[number], self._stream_after(self._tensors[number]))

    def _plan_drop_graph(self) -> None:
        reused = {i for g in self._graphs.values() for i in g.inputs}
        droppable = [g for g in self._ordinary_graphs() if not reused & set(g.outputs)]
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
