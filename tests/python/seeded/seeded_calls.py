"""The rarer calls of the interface that seeded programs make, and their results."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

import seeded_operations as ops
from ferro_alloc.graphs import CaptureGuard, DeviceScalar, ExclusiveGroup, exclusive

UNCOMPARED = (
    "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "snapshot",
)  # fmt: skip
"""History entries whose time depends on the allocator."""


class OutOfMemoryLog:
    """Records the calls of an observer of failed requests, which cannot be detached."""

    _told: list[list[int]] | None = None

    @classmethod
    def start(cls) -> None:
        if cls._told is None:
            told: list[list[int]] = []
            cls._told = told
            torch._C._cuda_attach_out_of_memory_observer(
                lambda device, size, total, free: told.append([device, size])
            )

    @classmethod
    def take(cls) -> list[list[int]]:
        assert cls._told is not None
        found = cls._told[:]
        cls._told.clear()
        return found


def owner_of(address: int, size: int) -> torch.Tensor:
    """A tensor of that memory, whose storage does not own it yet."""
    device = torch.device("cuda", torch.cuda.current_device())
    storage = torch._C._construct_storage_from_data_pointer(address, device, size)
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage, 0, (size,), (1,))


def snapshot_of_pool(pool: tuple[int, int]) -> list[Any]:
    # PyTorch 2.11 drops a reference to each part of its argument, which it does not own.
    for part in (*pool, True):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
    segments: list[Any] = torch.cuda.memory_snapshot(pool, include_traces=True)
    return segments


def storage_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def region(name: str) -> Any:
    """A function whose calls PyTorch takes for calls of a compiled region of that name."""

    def forward(context: Any, call: Any) -> None:
        call()

    return type(name, (torch.autograd.Function,), {"forward": staticmethod(forward)})


class Calls:
    """Makes the calls, and keeps the state that they need."""

    def __init__(self, streams: list[torch.cuda.Stream], alone: threading.RLock) -> None:
        self._streams = streams
        self._alone = alone
        self._devices = range(1 + max(stream.device.index for stream in streams))
        self._tensors: dict[int, torch.Tensor] = {}
        self._mempools: dict[int, torch.cuda.MemPool] = {}
        self._handles: dict[int, tuple[int, int]] = {}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._group: ExclusiveGroup | None = None
        self.mistake = ""
        self._raw: dict[int, int] = {}
        """Addresses of tensors that were allocated by address."""
        self._scalars: dict[int, DeviceScalar] = {}
        self._late_values: dict[int, torch.Tensor] = {}
        self._checkpoints: dict[int, Any] = {}
        self._in_pool: dict[int, tuple[int, int]] = {}
        """Addresses and sizes of tensors that were in a checkpoint."""
        self._kept = 0
        self._events: dict[int, torch.cuda.Event] = {}
        self._limited = False

    def run(self, operation: ops.Operation) -> None:
        raise NotImplementedError

    # ---- memory

    def _allocate(self, op: ops.Alloc) -> torch.Tensor:
        if op.raw:
            stream = self._streams[op.stream]
            address = torch.cuda.caching_allocator_alloc(op.size, stream.device, stream)
            self._raw[op.tensor] = address
            return owner_of(address, op.size)
        try:
            with self._source_of(op):
                return torch.empty(op.size, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            if not self._limited:
                raise
        self._lift_limit()
        return self._allocate(op)

    def _run_limit(self, op: ops.Limit) -> None:
        self._lift_limit()
        if op.slack is not None:
            total = torch.cuda.get_device_properties(0).total_memory
            most = torch.cuda.memory_allocated() + op.slack
            torch.cuda.set_per_process_memory_fraction(most / total)
            self._limited = True

    def _lift_limit(self) -> None:
        if self._limited:
            torch.cuda.set_per_process_memory_fraction(1.0)
            self._limited = False

    @contextmanager
    def _source_of(self, op: ops.Alloc | ops.AskTooMuch) -> Iterator[None]:
        if op.mempool is not None:
            with torch.cuda.use_mem_pool(self._mempools[op.mempool]):
                yield
        elif isinstance(op, ops.Alloc) and not op.cached:
            with self._alone:
                torch.cuda.caching_allocator_enable(False)
                try:
                    yield
                finally:
                    torch.cuda.caching_allocator_enable(True)
        elif isinstance(op, ops.Alloc) and op.handle is not None:
            pool = self._pool_of(op.handle)
            torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
            try:
                yield
            finally:
                torch._C._cuda_endAllocateToPool(0, pool)
                torch._C._cuda_releasePool(0, pool)
        else:
            yield

    def _pool_of(self, handle: int) -> tuple[int, int]:
        return self._handles.setdefault(handle, torch.cuda.graph_pool_handle())

    def _run_copy_on_write(self, op: ops.CopyOnWrite) -> None:
        source = self._tensors[op.source]
        with torch.cuda.stream(self._streams[op.stream]):
            target = torch._lazy_clone(source)
            self._tensors[op.target] = target
            # The first access copies; then the source owns its memory alone again.
            assert target.data_ptr() != source.data_ptr()

    def _run_ask_too_much(self, op: ops.AskTooMuch) -> object:
        OutOfMemoryLog.start()
        size = int(op.share * torch.cuda.get_device_properties(0).total_memory)
        with self._alone:
            torch.cuda.set_per_process_memory_fraction(op.allowed)
            allowed = torch.cuda.get_per_process_memory_fraction()
            try:
                with self._source_of(op):
                    torch.empty(size, dtype=torch.uint8, device="cuda")
                raise RuntimeError("a request for too much was served")
            except torch.OutOfMemoryError:
                return [allowed, OutOfMemoryLog.take()]
            finally:
                torch.cuda.set_per_process_memory_fraction(1.0)

    def _run_copy_to_peer(self, op: ops.CopyToPeer) -> None:
        source = self._tensors[op.source][op.source_offset : op.source_offset + op.length]
        target = self._tensors[op.target][op.target_offset : op.target_offset + op.length]
        with ExitStack() as both:
            both.enter_context(torch.cuda.stream(self._streams[op.source_stream]))
            both.enter_context(torch.cuda.stream(self._streams[op.target_stream]))
            target.copy_(source, non_blocking=True)

    def _run_make_scalar(self, op: ops.MakeScalar) -> None:
        with torch.cuda.stream(self._streams[op.stream]):
            scalar = DeviceScalar(getattr(torch, op.dtype), op.value)
        self._scalars[op.tensor] = scalar
        self._tensors[op.tensor] = scalar.tensor.reshape(1).view(torch.uint8)

    def _run_update_scalar(self, op: ops.UpdateScalar) -> None:
        stream, scalar = self._streams[op.stream], self._scalars[op.tensor]
        if not op.late:
            scalar.update(op.value, stream)
            return
        blank = torch.empty((), dtype=scalar.dtype, pin_memory=True)
        host = self._late_values.setdefault(op.tensor, blank)
        with torch.cuda.stream(stream):
            scalar.tensor.copy_(host.fill_(op.value), non_blocking=True)

    # ---- events

    def _run_record_event(self, op: ops.RecordEvent) -> None:
        event = self._events[op.event] = torch.cuda.Event()
        event.record(self._streams[op.stream])

    def _run_wait_event(self, op: ops.WaitEvent) -> None:
        self._streams[op.stream].wait_event(self._events.pop(op.event))

    def _run_sync_event(self, op: ops.SyncEvent) -> None:
        self._events.pop(op.event).synchronize()

    # ---- observing

    def _run_record_history(self, op: ops.RecordHistory) -> object:
        self._kept = op.kept if op.enabled else 0
        enabled = "all" if op.enabled else None
        further = {}
        if self._kept:
            further = {
                "max_entries": op.kept,
                "clear_history": True,
                "compile_context": True,
                "global_record_annotations": True,
                "skip_actions": list(UNCOMPARED),
            }
        torch.cuda.memory._record_memory_history(enabled, stacks="python", **further)
        return torch._C._cuda_isHistoryEnabled()

    def _run_set_metadata(self, op: ops.SetMetadata) -> object:
        torch._C._cuda_setMemoryMetadata(op.text)
        return torch._C._cuda_getMemoryMetadata()

    def _run_phase(self, op: ops.Phase) -> None:
        def run() -> None:
            for operation in op.operations:
                self.run(operation)

        if op.compiled:
            region(f"Torch-Compiled Region: {op.name}").apply(run)
        else:
            with torch.autograd.profiler.record_function(op.name):
                run()

    def _run_snapshot(self, op: ops.Snapshot) -> object:
        """Live blocks, their requested bytes, and the newest history entries."""
        taken: dict[str, Any] = {}
        # When threads take turns, no other thread runs meanwhile; otherwise the sums are not
        # compared.
        with self._alone:
            if op.mempool is not None:
                segments = snapshot_of_pool(self._mempools[op.mempool].id)
            elif op.handle is not None:
                segments = snapshot_of_pool(self._handles[op.handle])
            else:
                taken = torch.cuda.memory._snapshot()
                segments = taken["segments"]
        blocks = [block for segment in segments for block in segment["blocks"]]
        live = [b["requested_size"] for b in blocks if b["state"] == "active_allocated"]
        return [len(live), sum(live), *(self._history_of(taken) if taken else [])]

    def _history_of(self, taken: dict[str, Any]) -> list[object]:
        if not self._kept:
            return []
        keys = ("action", "size", "compile_context", "user_metadata")
        entries = [[e.get(k) for k in keys] for trace in taken["device_traces"] for e in trace]
        keys = ("name", "stage", "device")
        return [entries, [[note.get(k) for k in keys] for note in taken["external_annotations"]]]

    def _run_reset_peaks(self, op: ops.ResetPeaks) -> None:
        for device in self._devices:
            torch.cuda.reset_peak_memory_stats(device)

    def _run_reset_counts(self, op: ops.ResetCounts) -> None:
        for device in self._devices:
            torch.cuda.reset_accumulated_memory_stats(device)

    # ---- exclusive groups

    def _run_join_group(self, op: ops.JoinGroup) -> None:
        if self._group is None:
            self._group = exclusive(name="seeded", ordered=self.mistake == "order")
        member = self._pool_of(op.handle) if op.handle is not None else self._graphs[op.graph]
        self._group.join(member)

    def _run_leave_group(self, op: ops.LeaveGroup) -> None:
        assert self._group is not None
        self._group.leave(self._graphs[op.graph])

    def _run_fail_capture(self, op: ops.FailCapture) -> None:
        kept = []
        stream = self._streams[op.stream]
        try:
            with CaptureGuard(self._pool_of(op.handle), stream=stream):
                for size in op.sizes:
                    kept.append(torch.empty(size, dtype=torch.uint8, device=stream.device))
                del kept[::2]
                raise InterruptedError
        except InterruptedError:
            pass

    # ---- checkpoints

    def _run_note_checkpoint(self, op: ops.NoteCheckpoint) -> None:
        self._checkpoints[op.checkpoint] = torch._C._cuda_getCheckpointState(
            0, self._handles[op.handle]
        )
        for number in op.tensors:
            tensor = self._tensors[number]
            self._in_pool[number] = (tensor.data_ptr(), tensor.numel())

    def _run_go_to_checkpoint(self, op: ops.GoToCheckpoint) -> None:
        removed = [self._tensors.pop(number) for number in op.removed]
        for tensor in removed:
            torch._C._free_And_Remove_DeleterFn(storage_of(tensor))
        stale = [self._tensors.pop(number) for number in op.stale]
        revived = [owner_of(*self._in_pool[number]) for number in op.revived]
        torch._C._cuda_setCheckpointPoolState(
            0,
            self._checkpoints[op.checkpoint],
            [storage_of(tensor) for tensor in stale],
            [storage_of(tensor) for tensor in revived],
        )
        self._tensors.update(zip(op.revived, revived, strict=True))
        for number in op.unowned:
            torch._C._cuda_cudaCachingAllocator_raw_delete(self._in_pool[number][0])
        self._forget_restoring()

    def _forget_restoring(self) -> None:
        """Native frees and allocates each block of the checkpoint, even one that stays.

        These calls show in its counts, its peaks and its history.
        """
        self._run_reset_peaks(ops.ResetPeaks())
        self._run_reset_counts(ops.ResetCounts())
        if self._kept:
            self._run_record_history(ops.RecordHistory(True, self._kept))

    def _run_check_live(self, op: ops.CheckLive) -> None:
        places = {number: self._tensors[number].data_ptr() for number in op.tensors}
        pool = self._handles[op.handle]
        alive = set(places.values())
        if not torch._C._cuda_checkPoolLiveAllocations(0, pool, alive):
            raise RuntimeError("other blocks of the pool are live")
        for wrong in ({*alive, 512}, alive - {min(alive, default=0)}):
            if wrong != alive and torch._C._cuda_checkPoolLiveAllocations(0, pool, wrong):
                raise RuntimeError("the pool reports a wrong set of live blocks")
