"""Carries out planned programs with torch and compares every byte that they read back."""

from __future__ import annotations

import ctypes
import queue
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

import seeded_operations as ops
import seeded_plan as plan
from seeded_calls import Calls
from seeded_own_pools import OwnAllocator
from seeded_statistics import statistics
from tests.python.host_bytes import same_bytes

_WORDS = torch.arange(ops.HOST_BYTES // 4 + 2, dtype=torch.int32)


def pattern(piece: ops.Piece) -> torch.Tensor:
    """The bytes of a piece. Word i of pattern `tag` is i XOR a hash of the tag."""
    if piece.byte is not None:
        return torch.full((piece.length,), piece.byte, dtype=torch.uint8)
    key = (piece.tag * 0x9E3779B1 + 0x7F4A7C15) & 0xFFFFFFFF
    signed = key - (1 << 32) if key >= 1 << 31 else key
    first, last = piece.offset // 4, -(-(piece.offset + piece.length) // 4)
    words = _WORDS[first:last] ^ signed
    skipped = piece.offset - 4 * first
    return words.view(torch.uint8)[skipped : skipped + piece.length]


def content(pieces: ops.Content) -> torch.Tensor:
    parts = [pattern(piece) for piece in pieces]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


@dataclass
class Tally:
    """What a program did, and what was wrong."""

    operations: Counter[str] = field(default_factory=Counter)
    captured_on: Counter[int] = field(default_factory=Counter)
    """The number of captures that began on each stream."""
    replayed_on: Counter[int] = field(default_factory=Counter)
    replays_of_scalars: int = 0
    """Replays of graphs that read device scalars."""
    bytes_checked: int = 0
    wrong_reads: int = 0
    wrong_bytes: int = 0
    errors: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.operations += other.operations
        self.captured_on += other.captured_on
        self.replayed_on += other.replayed_on
        self.replays_of_scalars += other.replays_of_scalars
        self.bytes_checked += other.bytes_checked
        self.wrong_reads += other.wrong_reads
        self.wrong_bytes += other.wrong_bytes
        self.errors += other.errors

    @property
    def failed(self) -> bool:
        return bool(self.wrong_reads or self.errors)


def host_memory() -> tuple[torch.Tensor, torch.Tensor]:
    """Pinned sources and pinned results; one pair for each executor that runs at a time."""
    pair = [torch.empty(ops.HOST_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    return pair[0], pair[1]


class Executor(Calls):
    """Runs the operations of one program, each on the thread that calls `run`."""

    def __init__(
        self,
        streams: list[torch.cuda.Stream],
        host: tuple[torch.Tensor, torch.Tensor],
        check_invariants: Callable[[], None] | None = None,
        alone: threading.RLock | None = None,
        inbox: queue.SimpleQueue[torch.Tensor] | None = None,
        outbox: queue.SimpleQueue[torch.Tensor] | None = None,
        switch: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(streams, alone or threading.RLock())
        self.tally = Tally()
        self.answer: object = None
        """The result of the last operation, which must be the same under every allocator."""
        self._source, self._result = host
        self._check_invariants = check_invariants or (lambda: None)
        self._switch = switch or (lambda: None)
        # A freed tensor goes into the outbox of one thread, and another thread frees it from its
        # inbox.
        self._inbox, self._outbox = inbox, outbox
        self._read_scalars: set[int] = set()
        """Graphs that read device scalars."""
        self._reads: list[ops.Read] = []
        self._capturing = False
        self._memset = ctypes.CDLL("libcudart.so.13").cudaMemsetAsync
        self._memset.argtypes = (
            ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p,
        )  # fmt: skip

    def run(self, operation: ops.Operation) -> None:
        name = type(operation).__name__
        self.tally.operations[name] += 1
        words = re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
        self.answer = getattr(self, f"_run_{words}")(operation)
        self.drop_received()

    def drop_received(self) -> None:
        while self._inbox is not None and not self._inbox.empty():
            self._inbox.get()

    def _run_alloc(self, op: ops.Alloc) -> None:
        with torch.cuda.stream(self._streams[op.stream]):
            self._tensors[op.tensor] = self._allocate(op)

    def _run_fill(self, op: ops.Fill) -> None:
        slot = self._source[op.slot : op.slot + op.size]
        slot.copy_(pattern(ops.Piece(op.tag, 0, op.size)))
        with torch.cuda.stream(self._streams[op.stream]):
            self._tensors[op.tensor].copy_(slot, non_blocking=True)

    def _run_copy(self, op: ops.Copy) -> None:
        source = self._tensors[op.source][op.source_offset : op.source_offset + op.length]
        target = self._tensors[op.target][op.target_offset : op.target_offset + op.length]
        with torch.cuda.stream(self._streams[op.stream]):
            target.copy_(source)

    def _run_memset(self, op: ops.Memset) -> None:
        # zero_() and fill_() are kernels, which do nothing on the simulated GPU.
        target, stream = self._tensors[op.tensor], self._streams[op.stream]
        with torch.cuda.device(stream.device):
            status = self._memset(target.data_ptr(), op.byte, target.numel(), stream.cuda_stream)
        if status:
            raise RuntimeError(f"cudaMemsetAsync returned {status}")

    def _run_wait(self, op: ops.Wait) -> None:
        stream, other = self._streams[op.stream], self._streams[op.other]
        if (op.stream + op.other) % 2:
            stream.wait_stream(other)
        else:
            event = torch.cuda.Event()
            event.record(other)
            stream.wait_event(event)

    def _run_record_stream(self, op: ops.RecordStream) -> None:
        self._tensors[op.tensor].record_stream(self._streams[op.stream])

    def _run_free(self, op: ops.Free) -> None:
        tensor = self._tensors.pop(op.tensor)
        self._scalars.pop(op.tensor, None)
        address = self._raw.pop(op.tensor, None)
        if address is not None:
            torch.cuda.caching_allocator_delete(address)
        elif self._outbox is not None and not (op.here or self._capturing):
            self._outbox.put(tensor)

    def _run_read(self, op: ops.Read) -> None:
        tensor = self._tensors[op.tensor]
        slot = self._result[op.slot : op.slot + tensor.numel()]
        with torch.cuda.stream(self._streams[op.stream]):
            slot.copy_(tensor, non_blocking=True)
        self._reads.append(op)

    def _run_sync_device(self, op: ops.SyncDevice) -> None:
        with self._alone:
            for device in self._devices:
                torch.cuda.synchronize(device)
        self._compare(lambda read: True)

    def _run_sync_stream(self, op: ops.SyncStream) -> None:
        self._streams[op.stream].synchronize()
        self._compare(lambda read: read.stream == op.stream)

    def _run_empty_cache(self, op: ops.EmptyCache) -> None:
        with self._alone:
            torch.cuda.empty_cache()

    def _run_ask_statistics(self, op: ops.AskStatistics) -> None:
        statistics(self._devices)

    def _run_check_invariants(self, op: ops.CheckInvariants) -> None:
        self._check_invariants()

    def _run_make_mempool(self, op: ops.MakeMempool) -> None:
        own = OwnAllocator.instance().functions if op.own_allocator else None
        self._mempools[op.mempool] = torch.cuda.MemPool(own)

    def _run_share(self, op: ops.Share) -> None:
        with torch.cuda.stream(self._streams[op.stream]):
            shared = self._tensors[op.tensor].untyped_storage()._share_cuda_()
        torch.UntypedStorage._release_ipc_counter_cuda(shared[4], shared[5])

    def _run_switch(self, op: ops.Switch) -> None:
        with self._alone:
            self._switch()

    def _run_drop_mempool(self, op: ops.DropMempool) -> None:
        with self._alone:
            del self._mempools[op.mempool]

    def _run_capture(self, op: ops.Capture) -> None:
        pool = None if op.handle is None else self._pool_of(op.handle)
        stream = self._streams[op.stream]
        graph = torch.cuda.CUDAGraph()
        self._lift_limit()
        with self._alone:
            self._capturing = True
            if op.with_context_manager:
                mode = "thread_local"
                with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode=mode):
                    self._run_body(op)
            else:
                with torch.cuda.stream(stream):
                    graph.capture_begin(pool, capture_error_mode="thread_local")
                    self._run_body(op)
                    graph.capture_end()
            self._capturing = False
        self._graphs[op.graph] = graph
        self.tally.captured_on[op.stream] += 1
        if any(isinstance(o, ops.Copy) and o.source in self._scalars for o in op.body):
            self._read_scalars.add(op.graph)

    def _run_body(self, op: ops.Capture) -> None:
        for operation in op.body:
            self.run(operation)

    def _run_replay(self, op: ops.Replay) -> None:
        with torch.cuda.stream(self._streams[op.stream]):
            self._graphs[op.graph].replay()
        self.tally.replayed_on[op.stream] += 1
        self.tally.replays_of_scalars += op.graph in self._read_scalars

    def _run_drop_graph(self, op: ops.DropGraph) -> None:
        with self._alone:
            del self._graphs[op.graph]

    def _compare(self, ready: Callable[[ops.Read], bool]) -> None:
        waiting = []
        for read in self._reads:
            if not ready(read):
                waiting.append(read)
                continue
            expected = content(read.expected)
            found = self._result[read.slot : read.slot + expected.numel()]
            self.tally.bytes_checked += expected.numel()
            if not same_bytes(found, expected):
                self.tally.wrong_reads += 1
                self.tally.wrong_bytes += int((found != expected).sum())
        self._reads = waiting


class Workers:
    """Threads that carry out calls one at a time, in the order of the calls."""

    def __init__(self, count: int) -> None:
        self._inbox: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        self._outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._threads = []
        for _ in range(count):
            inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
            thread = threading.Thread(target=self._serve, args=(inbox,))
            thread.start()
            self._inbox.append(inbox)
            self._threads.append(thread)

    def _serve(self, inbox: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while (call := inbox.get()) is not None:
            try:
                call()
                self._outcome.put(None)
            except BaseException as error:
                self._outcome.put(error)

    def call(self, thread: int, call: Callable[[], None]) -> None:
        self._inbox[thread].put(call)
        error = self._outcome.get()
        if error is not None:
            raise error

    def stop(self) -> None:
        for inbox in self._inbox:
            inbox.put(None)
        for thread in self._threads:
            thread.join()


def run_in_turns(
    program: plan.Planner,
    executor: Executor,
    threads: int,
    after_step: Callable[[ops.Operation, object], None] | None = None,
    stop_when_caught: bool = False,
) -> Tally:
    """Runs a program on several threads, one at a time, in the order of its operations.

    With `stop_when_caught` the first wrong read ends the run.
    """
    workers = Workers(threads)
    try:
        for number, step in enumerate(program.steps()):
            operation = step.operation
            try:
                workers.call(step.thread, lambda op=operation: executor.run(op))  # type: ignore[misc]
            except Exception as error:
                name = type(operation).__name__
                executor.tally.errors.append(f"step {number} {name}: {error!r}"[:800])
                break
            if after_step is not None:
                after_step(operation, executor.answer)
            if stop_when_caught and executor.tally.failed:
                break
    finally:
        workers.stop()
    return executor.tally


def run_at_once(programs: list[tuple[plan.Planner, Executor]]) -> Tally:
    """Runs each program on its own thread, all at the same time."""
    start = threading.Barrier(len(programs))

    def run(program: plan.Planner, executor: Executor) -> None:
        start.wait()
        for number, step in enumerate(program.steps()):
            try:
                executor.run(step.operation)
            except Exception as error:
                name = type(step.operation).__name__
                executor.tally.errors.append(f"step {number} {name}: {error!r}"[:800])
                return

    threads = [threading.Thread(target=run, args=pair) for pair in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = Tally()
    for _, executor in programs:
        total.add(executor.tally)
        executor.drop_received()
    return total
