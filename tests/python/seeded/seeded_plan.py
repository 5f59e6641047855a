"""Draws programs from a seed: their allocations, copies, waits, captures and frees.

The planner follows PyTorch's rules for streams, so a program is correct under every allocator: a
stream waits for the streams whose work it depends on, and memory that another stream used is freed
after `record_stream` or after its own stream has waited. It knows the value of every byte of every
tensor at every moment, and puts it into `Read`. This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterator

from seeded_extras import CHOICES, Extras
from seeded_operations import (
    AskStatistics,
    CheckInvariants,
    DropMempool,
    EmptyCache,
    MIB,
    MakeMempool,
    Shape,
    Step,
    SyncDevice,
    SyncStream,
)


class Planner(Extras):
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
        for extra, choices in CHOICES.items():
            if extra in shape.extras:
                self._choices += choices

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

    # ---- operations

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
        # Mostly its own stream fills it; sometimes another stream does at once.
        stream = tensor.home if self._random.random() < 0.8 else self._stream_after(tensor)
        self._fill(tensor, stream)

    def _plan_handoff(self) -> None:
        """Another stream uses a tensor that is freed at once, and its size is requested again."""
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
        """Frees whole pages while work uses them, and often releases them at once."""
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
        # Device scalars are few, and are freed when they are too many.
        tensor = self._pick(lambda t: not t.pins and t.graph is None and t.scalar is None)
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

    def _plan_end(self) -> None:
        """Reads all live tensors, releases everything and drains."""
        for tensor in list(self._tensors.values()):
            if tensor.content is not None:
                self._read(tensor, self._stream_after(tensor))
        self._end_tree()
        for graph in sorted(self._graphs.values(), key=lambda g: -g.number):
            self._drop(graph)
        for tensor in list(self._tensors.values()):
            self._free(tensor)
        self._out.extend(DropMempool(number) for number in self._mempools)
        self._out += [SyncDevice(), EmptyCache(), CheckInvariants()]
