"""The bodies that graphs of seeded programs capture."""

from __future__ import annotations

from seeded_moves import (
    Moves,
    Tensor,
)
from seeded_operations import (
    MIB,
    Operation,
    Piece,
    Wait,
    exact_size,
)


class Body(Moves):
    """Draws the operations that a graph captures, on its stream and on streams forked from it."""

    def __init__(
        self,
        outer: Moves,
        stream: int,
        inputs: list[Tensor],
        *,
        in_tree: bool = False,
    ) -> None:
        super().__init__(outer._random.getrandbits(32), outer._shape)
        self._outer = outer
        self._in_tree = in_tree
        self._moves = ["fork", "new", "new", "copy", "memset", "drop", "handoff", "handoff"]
        if "groups" in outer._shape.extras and not in_tree:
            self._moves += 4 * ["relay"]
        self._capturing = [stream]
        # Earlier work has no effect in the capture; its effect on the inputs is computed on replay.
        views = [Tensor(t.number, t.size, -1, (Piece(t.number, 0, t.size),)) for t in inputs]
        for view, tensor in zip(views, inputs, strict=True):
            view.shared, view.scalar = in_tree, tensor.scalar
        self._inputs = {view.number: view for view in views}
        self.tensors: dict[int, Tensor] = {}
        self.sizes = {tensor.number: tensor.size for tensor in inputs}

    def draw(self) -> tuple[tuple[Operation, ...], list[int], list[int]]:
        """Returns the body, the tensors that it leaves for replays, and those to free after the
        capture."""
        main = self._capturing[0]
        for view in self._inputs.values():
            if view.scalar is not None:
                self._body_new(view)
        for _ in range(self._random.randint(3, 14)):
            getattr(self, f"_body_{self._random.choice(self._moves)}")()
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
        first = self._shape.streams if self._on_peer(self._capturing[0]) else 0
        streams = range(first, first + self._shape.streams)
        free = [s for s in streams if s not in self._capturing]
        if free and len(self._capturing) < 3:
            side = self._random.choice(free)
            self._out.append(Wait(side, self._random.choice(self._capturing)))
            self._capturing.append(side)

    def _body_new(self, source: Tensor | None = None) -> None:
        if source is None:
            sources = [*self._inputs.values(), *self._tensors.values()]
            source = self._random.choice([s for s in sources if s.content is not None])
        size = self._random.randint(1, 2 * source.size)
        if self._in_tree:
            size = exact_size(size)
        tensor = self._allocate(size, self._stream(), None)
        self.tensors[tensor.number] = tensor
        self.sizes[tensor.number] = tensor.size
        if tensor.size > source.size:
            self._memset(tensor, tensor.home)
        self._copy(source, tensor, self._stream())
        # Copies of a part leave unknown bytes; a body must define all bytes that it hands on.
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
        """As in eager code, memory freed here must not be handed out before the streams join."""
        source = self._pick(lambda t: True)
        if source is None or len(self._capturing) < 2:
            return
        size = exact_size(source.size) if self._in_tree else source.size
        first = self._allocate(size, self._capturing[0], None)
        self.sizes[first.number] = first.size
        self._memset(first, first.home)
        self._copy(source, first, first.home)
        second = self._allocate(size, self._capturing[-1], None)
        self.tensors[second.number] = second
        self.sizes[second.number] = second.size
        self._memset(second, second.home)
        self._copy(first, second, second.home)
        self._free(first, by_event=False)
        third = self._allocate(size, self._capturing[0], None)
        self.tensors[third.number] = third
        self.sizes[third.number] = third.size
        self._memset(third, third.home)

    def _body_relay(self) -> None:
        """The contents of a tensor depend on scratch of whole pages."""
        source = self._pick(lambda t: True) or next(iter(self._inputs.values()))
        if source.content is None:
            return
        scratch = self._allocate(self._random.randint(2, 6) * MIB, self._stream(), None)
        self.sizes[scratch.number] = scratch.size
        self._memset(scratch, scratch.home)
        self._copy(source, scratch, scratch.home)
        self._body_new(scratch)
        self._free(scratch)

    def _body_drop(self) -> None:
        tensor = self._pick(lambda t: True)
        if tensor is not None:
            self._free(tensor)

    def _allocate(
        self, size: int, stream: int, mempool: int | None, *, cached: bool = True, raw: bool = False
    ) -> Tensor:
        tensor = super()._allocate(size, stream, mempool, cached=cached, raw=raw)
        # A block that other streams are recorded on cannot be part of a checkpoint.
        tensor.shared = self._in_tree
        return tensor

    def _pick(self, allowed: object, *, peers: bool = False) -> Tensor | None:
        """Picks a tensor of the device that captures."""
        return super()._pick(allowed, peers=self._on_peer(self._capturing[0]))

    def _number(self) -> int:
        return self._outer._number()

    def _stream(self) -> int:
        return self._random.choice(self._capturing)
