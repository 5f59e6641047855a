"""The optional operations of seeded programs: the rarer calls of the interface."""

from __future__ import annotations

from seeded_moves import Tensor
from seeded_operations import (
    AskTooMuch,
    CopyOnWrite,
    CopyToPeer,
    MIB,
    MakeScalar,
    Phase,
    RecordHistory,
    ResetCounts,
    ResetPeaks,
    SCALARS,
    SetMetadata,
    Share,
    Snapshot,
    Switch,
    SyncDevice,
    overwritten,
    part,
    scalar_content,
)
from seeded_groups import Groups

CHOICES = {
    "history": [(1, "history")],
    "sharing": [(2, "share")],
    "switches": [(1, "switch")],
    "checkpoints": [(6, "tree")],
    "clones": [(1, "clone")],
    "groups": [(3, "group"), (3, "capture"), (8, "replay")],
    "limits": [(1, "too_much")],
    "metadata": [(1, "entries"), (2, "metadata"), (4, "phase")],
    "peers": [
        (4, "peer_new"),
        (8, "peer_copy"),
        (3, "peer_read"),
        (3, "peer_free"),
        (1, "peer_capture"),
    ],
    "raw": [(4, "raw")],
    "resets": [(2, "reset")],
    "scalars": [(2, "scalar"), (6, "update")],
    "snapshots": [(2, "snapshot")],
}
"""The probability of each operation of an extra."""

PEER_BYTES = 16 * MIB
"""Bytes for tensors of the second device."""

SCALARS_AT_ONCE = 8


class Extras(Groups):
    """Draws the operations of the extras."""

    # ---- observing

    def _plan_history(self) -> None:
        self._out.append(RecordHistory(self._random.random() < 0.7))

    def _plan_entries(self) -> None:
        enabled = self._random.random() < 0.8
        self._out.append(RecordHistory(enabled, self._random.choice([1, 20, 100])))

    def _plan_metadata(self) -> None:
        self._out.append(SetMetadata(self._random.choice(["", "forward", "backward"])))

    def _plan_phase(self) -> None:
        start = len(self._out)
        getattr(self, f"_plan_{self._random.choice(['new', 'handoff', 'free'])}")()
        operations = tuple(self._out[start:])
        del self._out[start:]
        compiled = self._random.random() < 0.5
        self._out.append(Phase(self._random.choice(["0/0", "1/0"]), compiled, operations))

    def _plan_snapshot(self) -> None:
        pools = [Snapshot(), *(Snapshot(mempool=number) for number in self._mempools)]
        if self._tree is not None and self._tree.here is not None:
            pools.append(Snapshot(handle=self._tree.handle))
        self._out.append(self._random.choice(pools))

    def _plan_reset(self) -> None:
        self._out.append(self._random.choice([ResetPeaks(), ResetCounts()]))

    def _plan_switch(self) -> None:
        self._out.append(Switch())

    # ---- other ways to memory

    def _plan_share(self) -> None:
        tensor = self._pick(lambda t: t.graph is None and self._is_plain(t))
        if tensor is not None:
            tensor.shared = True
            self._out.append(Share(tensor.number, tensor.home))

    def _is_plain(self, tensor: Tensor) -> bool:
        """Whether its memory is an ordinary block that belongs to it alone."""
        return tensor.cached and not tensor.raw and tensor.pool is None

    def _plan_raw(self) -> None:
        size = self._size()
        if self._live_bytes() + size > self._shape.live_bytes:
            self._plan_free()
            return
        tensor = self._allocate(size, self._home(), None, raw=True)
        self._fill(tensor, self._stream_after(tensor))

    def _plan_clone(self) -> None:
        source = self._pick(
            lambda t: (
                t.content is not None and t.graph is None and not t.shared and self._is_plain(t)
            )
        )
        if source is None or self._live_bytes() + source.size > self._shape.live_bytes:
            return
        target = Tensor(self._number(), source.size, self._home(), source.content)
        target.writer = target.home
        self._tensors[target.number] = target
        # The copy runs on the legacy default stream, for which no other stream waits.
        copy = CopyOnWrite(source.number, target.number, target.home)
        self._out += [SyncDevice(), copy, SyncDevice()]

    def _plan_too_much(self) -> None:
        share, allowed = self._random.choice([(0.75, 0.5), (1.5, 1.0), (1000.0, 0.25)])
        use_mempool = self._mempools and self._random.random() < 0.3
        mempool = self._random.choice(self._mempools) if use_mempool else None
        self._out.append(AskTooMuch(share, allowed, mempool))

    # ---- device scalars

    def _plan_scalar(self) -> None:
        scalars = [tensor for tensor in self._tensors.values() if tensor.scalar is not None]
        if len(scalars) >= SCALARS_AT_ONCE:
            unread = [tensor for tensor in scalars if not tensor.pins]
            if unread:
                self._free(self._random.choice(unread))
            return
        on_peer = "peers" in self._shape.extras and self._random.random() < 0.3
        home = self._peer_stream() if on_peer else self._home()
        dtype = self._random.choice(list(SCALARS))
        value = self._value(dtype)
        content = scalar_content(dtype, value)
        # Any stream may read it at once: the value is written when the constructor returns.
        tensor = Tensor(self._number(), len(content), home, content, scalar=dtype)
        self._tensors[tensor.number] = tensor
        self._out.append(MakeScalar(tensor.number, home, dtype, value))

    def _plan_update(self) -> None:
        scalars = [tensor for tensor in self._tensors.values() if tensor.scalar is not None]
        if scalars:
            scalar = self._random.choice(scalars)
            self._update(scalar, self._stream_after(scalar))

    # ---- the second device

    def _plan_peer_new(self) -> None:
        size = self._size()
        held = sum(tensor.size for tensor in self._tensors.values() if self._is_peer(tensor))
        if held + size <= PEER_BYTES:
            tensor = self._allocate(size, self._peer_stream(), None)
            self._fill(tensor, self._peer_stream())

    def _plan_peer_copy(self) -> None:
        to_peer = self._random.random() < 0.5
        peer = self._pick(
            lambda t: t.content is not None and not (to_peer and t.graph is not None), peers=True
        )
        other = self._pick(lambda t: t.content is not None if to_peer else t.graph is None)
        if peer is None or other is None:
            return
        if to_peer:
            self._copy_to_peer(other, peer)
        else:
            self._copy_to_peer(peer, other)

    def _copy_to_peer(self, source: Tensor, target: Tensor) -> None:
        from_stream, to_stream = self._stream_after(source), self._stream_after(target)
        copy = self._copy_range(source, target, from_stream)
        self._access(source, from_stream, write=False)
        self._access(target, to_stream, write=True)
        offsets = (copy.source_offset, copy.target_offset, copy.length)
        self._out.append(CopyToPeer(source.number, target.number, from_stream, to_stream, *offsets))
        assert source.content is not None
        moved = part(source.content, copy.source_offset, copy.length)
        target.content = overwritten(target.content, target.size, copy.target_offset, moved)

    def _plan_peer_read(self) -> None:
        tensor = self._pick(lambda t: t.content is not None, peers=True)
        if tensor is not None:
            self._read(tensor, self._stream_after(tensor))

    def _plan_peer_free(self) -> None:
        tensor = self._pick(
            lambda t: not t.pins and t.graph is None and t.scalar is None, peers=True
        )
        if tensor is not None:
            self._free(tensor)
