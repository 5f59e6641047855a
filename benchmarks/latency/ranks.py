"""NCCL between two GPUs from memory of each allocator: an all-reduce, and a send with its receive.

A buffer is unregistered, in a pool that the program registers with NCCL ("pool"), or registered by
NCCL itself ("hook", `TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK`). PyTorch ignores the hook
while expandable segments are on, so the program switches them off for it.

Native's process has buffers of ferro_alloc too, and one communicator sends from both in turns:
small messages take up to a third longer in one process than in another. The hook belongs to one
allocator of a process, so "hook" compares processes, as all of expandable segments does.

Each operation is captured several times into a CUDA graph, and the graphs' replays are timed: two
hosts that launch one small operation after another took 31 to 61 us for the same work.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.harness import turns
from benchmarks.harness.processes import OURS, use_allocator
from tools.gpu import gpu_count

ROUNDS = 8
SECONDS_PER_CASE = 0.2
SIZES = {"64 KiB": 1 << 16, "8 MiB": 1 << 23, "512 MiB": 1 << 29}
PER_GRAPH = {"64 KiB": 50, "8 MiB": 20, "512 MiB": 1}
WARM_UP = 3
BESIDE = "ferro_alloc: "
# PyTorch's stream-ordered allocator has no pools, and expandable segments no hook.
PROCESSES = ["native", "expandable"]
WITH_HOOK = ["native", OURS]


def repetitions(name: str) -> int:
    return next(times for size, times in PER_GRAPH.items() if size in name)


class Rank:
    """One of the two ranks, with its group and its buffers."""

    def __init__(self, rank: int, allocator: str, hook: bool, store: Any) -> None:
        import torch
        import torch.distributed as dist

        import ferro_alloc

        if hook:
            os.environ["TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"] = "1"
            torch.cuda.memory._set_allocator_settings("expandable_segments:False")
        os.environ["NCCL_GRAPH_REGISTER"] = "0"  # by the program or the hook, or not at all
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", store=store, rank=rank, world_size=2)
        self._rank = rank
        self._dist = dist
        self._kept: list[Any] = []
        self._buffers: dict[str, torch.Tensor] = {}
        self._ours: dict[str, torch.Tensor] = {}
        dist.all_reduce(torch.zeros(1, device=device))  # creates the communicator
        ways = ["hook"] if hook else ["", "pool"]
        self._fill(self._buffers, ways, device)
        if allocator == "native" and not hook:
            ferro_alloc.install()
            self._fill(self._ours, ways, device)

    def _fill(self, buffers: dict[str, Any], ways: Sequence[str], device: Any) -> None:
        for way in ways:
            for name, size in SIZES.items():
                key = f"{name}, {way}" if way else name
                buffers[key] = self._buffer(size, way == "pool", device)

    def _buffer(self, size: int, registered: bool, device: Any) -> Any:
        import torch

        if not registered:
            return torch.zeros(size, dtype=torch.uint8, device=device)
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            buffer = torch.zeros(size, dtype=torch.uint8, device=device)
        self._dist.group.WORLD._get_backend(device).register_mem_pool(pool)
        self._kept.append(pool)
        return buffer

    def work(self) -> Mapping[str, Callable[[], object]]:
        """The operations by name: `repetitions()` collectives, or as many messages from rank 0 to
        rank 1.

        Those of ferro_alloc's buffers in native's process follow native's, and begin with BESIDE.
        Both ranks must call this at the same time: each operation runs once before its capture.
        """
        return {name: self._repeated(name, run) for name, run in self._operations().items()}

    def _repeated(self, name: str, operation: Callable[[], object]) -> Callable[[], object]:
        import torch

        operation()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(repetitions(name)):
                operation()
        replay: Callable[[], object] = graph.replay
        return replay

    def _operations(self) -> Mapping[str, Callable[[], object]]:
        message = self._dist.recv if self._rank else self._dist.send
        found: dict[str, Callable[[], object]] = {}
        for name in self._buffers:
            both = [("", self._buffers[name])]
            if name in self._ours:
                both.append((BESIDE, self._ours[name]))
            for prefix, buffer in both:
                reduce = partial(self._dist.all_reduce, buffer)
                found[f"{prefix}all-reduce, {name}"] = reduce
            for prefix, buffer in both:
                found[f"{prefix}send, {name}"] = partial(message, buffer, 1 - self._rank)
        return found

    def close(self) -> None:
        self._dist.destroy_process_group()


def follow(allocator: str, simulated: bool, hook: bool, port: int, orders: Any) -> None:
    """Rank 1: runs the requested operations until it is told to end."""
    use_allocator(allocator, simulated, count=2)
    import torch
    import torch.distributed as dist

    rank = Rank(1, allocator, hook, dist.TCPStore("127.0.0.1", port, 2))
    work = rank.work()
    while (order := orders.recv()) is not None:
        name, times = order
        for _ in range(times):
            work[name]()
        torch.cuda.synchronize()
    rank.close()


def cases(allocator: str, simulated: bool, hook: bool) -> Mapping[str, turns.Case]:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing

    context = torch.multiprocessing.get_context("spawn")
    orders, tell = context.Pipe(duplex=False)
    store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    arguments = (allocator, simulated, hook, store.port, orders)
    context.Process(target=follow, args=arguments, daemon=True).start()
    work = Rank(0, allocator, hook, store).work()

    def seconds_for(name: str, times: int) -> float:
        """Seconds of the device, after a warm-up."""
        tell.send((name, WARM_UP + times))
        for _ in range(WARM_UP):
            work[name]()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        started = time.perf_counter()
        for _ in range(times):
            work[name]()
        last.record()
        torch.cuda.synchronize()
        return time.perf_counter() - started if simulated else first.elapsed_time(last) / 1e3

    def measure(name: str, seconds: float) -> float:
        estimate = seconds_for(name, WARM_UP) / WARM_UP
        times = max(WARM_UP, min(2000, int(seconds / max(estimate, 1e-9))))
        return seconds_for(name, times) / (times * repetitions(name)) * 1e9

    return {name: partial(measure, name) for name in work}


def main(argv: Sequence[str] | None = None) -> int:
    parser = turns.parser(__doc__, ROUNDS, SECONDS_PER_CASE)
    parser.add_argument("--hook", action="store_true", help="registered by NCCL's hook alone")
    options = turns.parse(parser, argv)
    if options.child is not None:
        made = partial(cases, options.child, options.simulated, options.hook)
        return turns.child(options, made, cards=2)
    if gpu_count() == 1:
        print("needs two GPUs", file=sys.stderr)
        return 1
    if options.allocators is not None:
        parser.error("native, expandable segments and ferro_alloc are compared, no others")
    options.allocators = PROCESSES
    native, expandable = turns.run("benchmarks.latency.ranks", [], options)
    options.allocators = WITH_HOOK
    native_hook, ours = turns.run("benchmarks.latency.ranks", ["--hook"], options)
    for name in [name for name in native.nanoseconds if name.startswith(BESIDE)]:
        ours.nanoseconds[name.removeprefix(BESIDE)] = native.nanoseconds.pop(name)
    native.nanoseconds |= native_hook.nanoseconds
    native.problem = native.problem or native_hook.problem
    # The order is that of native.
    ours.nanoseconds = {n: ours.nanoseconds[n] for n in native.nanoseconds if n in ours.nanoseconds}
    return turns.report([native, expandable, ours], "NCCL between two GPUs", options)


if __name__ == "__main__":
    sys.exit(main())
