"""Exclusive groups in seeded programs: pools that join and leave, and captures that fail."""

from __future__ import annotations

from seeded_moves import Graph
from seeded_operations import (
    FailCapture,
    JoinGroup,
    LeaveGroup,
    MIB,
    Shape,
)
from seeded_trees import Trees


class Groups(Trees):
    """Draws what happens to the group of a program.

    Members replay on any streams, and only the group orders its pools. In a pool that was a member
    when a graph was captured no other graph writes its results.
    """

    def __init__(self, seed: int, shape: Shape) -> None:
        super().__init__(seed, shape)
        if "groups" in shape.extras:
            self._handles += [self._number() for _ in range(2)]

    def _plan_group(self) -> None:
        names = ["join", "join", "join_pool", "leave", "fail", "race", "race"]
        getattr(self, f"_{self._random.choice(names)}")()

    def _join(self) -> None:
        graphs = [graph for graph in self._ordinary_graphs() if graph.pool not in self._members]
        if graphs:
            pool = self._random.choice(graphs).pool
            self._members.add(pool)
            for graph in self._graphs_of(pool):
                self._out.append(JoinGroup(graph=graph.number))

    def _join_pool(self) -> None:
        """The pool may join before any capture into it."""
        handle = self._random.choice([*self._handles, *self._peer_handles])
        if handle not in self._members and not self._graphs_of(handle):
            self._members.add(handle)
            self._out.append(JoinGroup(handle=handle))

    def _leave(self) -> None:
        graphs = [graph for graph in self._ordinary_graphs() if graph.pool in self._members]
        if graphs:
            graph = self._random.choice(graphs)
            self._members.remove(graph.pool)
            self._out.append(LeaveGroup(graph.number))

    def _race(self) -> None:
        """Pools replay one after the other, each on a stream that waits for no other pool."""
        graphs = [graph for graph in self._ordinary_graphs() if graph.pool in self._members]
        self._random.shuffle(graphs)
        first = self._shape.streams if graphs and self._on_peer(graphs[0].stream) else 0
        graphs = [g for g in graphs if self._on_peer(g.stream) == (first > 0)]
        together = list({graph.pool: graph for graph in graphs}.values())[: self._shape.streams]
        for graph in together:
            self._renew_inputs(graph)
        for number, graph in enumerate(together):
            self._replay(graph, first + number)
        for graph in together:
            self._read_outputs(graph)

    def _fail(self) -> None:
        """A capture that fails and leaves nothing."""
        handles = [handle for handle in self._handles if self._graphs_of(handle)]
        if not handles:
            return
        handle = self._random.choice(handles)
        sizes = tuple(self._random.randint(1, 4 * MIB) for _ in range(self._random.randint(1, 4)))
        self._out.append(FailCapture(handle, self._stream(), sizes))

    def _graphs_of(self, pool: int) -> list[Graph]:
        return [graph for graph in self._graphs.values() if graph.pool == pool]
