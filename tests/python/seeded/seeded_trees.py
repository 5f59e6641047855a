"""A pool that is set back to earlier states, as cudagraph trees do."""

from __future__ import annotations

from dataclasses import dataclass, field

from seeded_graphs import Graphs
from seeded_moves import Graph, Tensor
from seeded_operations import (
    Alloc,
    CheckLive,
    DropGraph,
    EmptyCache,
    GoToCheckpoint,
    JoinGroup,
    MIB,
    NoteCheckpoint,
    exact_size,
)


@dataclass
class Node:
    """A graph, and the state of the pool when it was captured."""

    graph: Graph
    parent: Node | None
    checkpoint: int
    inputs: list[Tensor]
    outputs: tuple[int, ...]
    saved: tuple[int, ...]
    """The tensors that were live in the pool."""

    def path(self) -> list[Node]:
        return [*(self.parent.path() if self.parent else []), self]


@dataclass
class Tree:
    handle: int
    stream: int
    here: Node | None = None
    nodes: list[Node] = field(default_factory=list)
    tensors: dict[int, Tensor] = field(default_factory=dict)
    """All tensors that were in the pool at any checkpoint."""
    is_member: bool = False
    """Whether it is in the program's exclusive group."""


class Trees(Graphs):
    """Draws the operations on a tree; at most one exists at a time.

    Only the graphs on the path to its last node are replayed. Outputs are freed only after waits,
    because a block that another stream is recorded on cannot be part of a checkpoint.
    """

    _tree: Tree | None = None

    def _plan_tree(self) -> None:
        if self._tree is None:
            self._tree = Tree(self._number(), self._stream())
        moves = ["grow", "go", "go", "go", "take", "lose", "prune", "check"]
        if "groups" in self._shape.extras and not self._tree.is_member:
            moves.append("join_tree")
            if not self._tree.nodes and self._random.random() < 0.3:
                self._join_tree(
                    self._tree
                )  # the pool is known as a tree's only after its first graph
        if self._tree.here is None or self._random.random() < 0.25:
            self._grow(self._tree)
        elif len(self._tree.nodes) >= 5 and self._random.random() < 0.05:
            self._end_tree()
        else:
            getattr(self, f"_{self._random.choice(moves)}")(self._tree)

    def _alive(self, tree: Tree) -> tuple[int, ...]:
        return tuple(sorted(t.number for t in self._tensors.values() if t.pool == tree.handle))

    def _grow(self, tree: Tree) -> None:
        """Captures one more graph behind the last one, and notes the state."""
        inputs = [t for t in self._some(2) if t.graph is None]
        inputs += [self._tensors[number] for number in self._alive(tree)[-2:]]
        inputs = [t for t in inputs if t.size <= 2 * MIB]
        if len(tree.nodes) >= 8 or not inputs:
            return
        number = self._number()
        graph = self._capture(number, tree.stream, tree.handle, inputs, in_tree=True)
        checkpoint, saved, outputs = self._number(), self._alive(tree), tuple(graph.outputs)
        self._out.append(NoteCheckpoint(checkpoint, tree.handle, saved))
        tree.here = Node(graph, tree.here, checkpoint, inputs, outputs, saved)
        tree.nodes.append(tree.here)
        tree.tensors.update((number, self._tensors[number]) for number in saved)

    def _go(self, tree: Tree) -> None:
        """Sets the pool to the state of another node, or back to that of the last one."""
        node = self._random.choice(tree.nodes)
        alive = self._alive(tree)
        dying = [number for number in alive if number not in node.saved]
        for number in dying:
            del self._tensors[number]
        stale = [number for number in dying if self._random.random() < 0.5]
        removed = [number for number in dying if number not in stale]
        # Waits for the streams that used the memory before.
        for other in sorted(self._touched.get(tree.handle, set()) - {tree.stream}):
            self._wait(tree.stream, other)
        missing = [number for number in node.saved if number not in alive]
        revived = [number for number in missing if self._comes_back(tree, number)]
        unowned = [number for number in missing if number not in revived]
        parts = (removed, stale, revived, unowned)
        self._out.append(GoToCheckpoint(node.checkpoint, *(tuple(part) for part in parts)))
        self._set_path(tree, node)
        self._check(tree)

    def _comes_back(self, tree: Tree, number: int) -> bool:
        tensor = tree.tensors[number]
        if not tensor.pins and self._random.random() < 0.3:
            return False
        self._tensors[number] = tensor
        tensor.content, tensor.writer = None, tree.stream
        tensor.readers, tensor.foreign = set(), set()
        self._touched.setdefault(tree.handle, set()).add(tree.stream)
        return True

    def _set_path(self, tree: Tree, node: Node) -> None:
        tree.here = node
        for other in tree.nodes:
            self._graphs.pop(other.graph.number, None)
        for step in node.path():
            step.graph.outputs = [n for n in step.outputs if n in self._tensors]
            self._graphs[step.graph.number] = step.graph

    def _take(self, tree: Tree) -> None:
        """Allocates in the pool without a capture, as the runs that warm up a function do."""
        size = exact_size(min(self._size(), 4 * MIB))
        if self._live_bytes() + size > self._shape.live_bytes:
            return
        # Graphs of the pool may have used this memory.
        for other in sorted(self._touched.get(tree.handle, set()) - {tree.stream}):
            self._wait(tree.stream, other)
        tensor = Tensor(self._number(), size, tree.stream, writer=tree.stream, shared=True)
        tensor.pool = tree.handle
        self._tensors[tensor.number] = tensor
        self._out.append(Alloc(tensor.number, size, tree.stream, handle=tree.handle))
        self._fill(tensor, tree.stream)

    def _lose(self, tree: Tree) -> None:
        tensor = self._pick(lambda t: t.pool == tree.handle and not t.pins)
        if tensor is not None:
            if tensor.graph is not None:
                self._graphs[tensor.graph].outputs.remove(tensor.number)
            self._free(tensor)

    def _prune(self, tree: Tree) -> None:
        """Drops a graph that has no successor."""
        assert tree.here is not None
        inner = [id(n.parent) for n in tree.nodes] + [id(n) for n in tree.here.path()]
        leaves = [node for node in tree.nodes if id(node) not in inner]
        if leaves:
            self._remove(tree, self._random.choice(leaves))

    def _remove(self, tree: Tree, node: Node) -> None:
        tree.nodes.remove(node)
        self._graphs.pop(node.graph.number, None)
        self._out.append(DropGraph(node.graph.number))
        for tensor in node.inputs:
            tensor.pins -= 1

    def _join_tree(self, tree: Tree) -> None:
        tree.is_member = True
        self._out.append(JoinGroup(handle=tree.handle))

    def _check(self, tree: Tree) -> None:
        self._out.append(CheckLive(tree.handle, self._alive(tree)))

    def _end_tree(self) -> None:
        if self._tree is None:
            return
        tree, self._tree = self._tree, None
        if self._shape.orderly_drops:
            for other in sorted(self._touched.get(tree.handle, set()) - {tree.stream}):
                self._wait(tree.stream, other)
        graphs_first = self._random.random() < 0.5
        if not graphs_first:
            self._free_all(tree)
        for node in list(tree.nodes):
            self._remove(tree, node)
        if graphs_first:
            self._free_all(tree)
        if self._shape.empty_cache and self._random.random() < 0.5:
            self._out.append(EmptyCache())

    def _free_all(self, tree: Tree) -> None:
        for number in self._alive(tree):
            self._free(self._tensors[number])
