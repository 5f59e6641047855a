"""The cost of sharing a tensor with another process: sent through a queue, opened, closed.

The tensor is a new one for "first" and the same one again for "again"; the other process answers
after it has received and dropped it. "share" and "open" are the calls without the queue, for a
tensor that was shared before: making a handle, and opening and closing one.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.harness import turns
from benchmarks.harness.processes import use_allocator

ROUNDS = 6
SECONDS_PER_CASE = 0.25
SIZES = {"64 KiB": 1 << 16, "64 MiB": 1 << 26, "1 GiB": 1 << 30}
HANDLES = 20
"""Handles of one tensor at a time."""


def consume(allocator: str, simulated: bool, tensors: Any, answers: Any) -> None:
    """The other process: receives tensors, or handles, until it gets None."""
    use_allocator(allocator, simulated)
    import torch
    import torch.multiprocessing

    torch.empty(1, device="cuda")
    answers.put(0)
    while (sent := tensors.get()) is not None:
        if isinstance(sent, torch.Tensor):
            answer = sent.numel()
            del sent
            gc.collect()
            torch.cuda.ipc_collect()
        else:
            started = time.perf_counter()
            for handle in sent:
                torch.UntypedStorage._new_shared_cuda(*handle)
            answer = (time.perf_counter() - started) / len(sent)
        answers.put(answer)


def cases(allocator: str, simulated: bool) -> Mapping[str, turns.Case]:
    import torch
    import torch.multiprocessing

    context = torch.multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    arguments = (allocator, simulated, tensors, answers)
    process = context.Process(target=consume, args=arguments, daemon=True)
    process.start()
    answers.get()

    def share(tensor: torch.Tensor) -> None:
        tensors.put(tensor)
        assert answers.get() == tensor.numel()

    def first(size: int, seconds: float) -> float:
        spent, done = 0.0, 0
        while spent < seconds or done < 3:
            tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
            started = time.perf_counter()
            share(tensor)
            spent += time.perf_counter() - started
            done += 1
            del tensor
            gc.collect()
            torch.cuda.ipc_collect()
            torch.cuda.empty_cache()
        return spent / done * 1e9

    def again(size: int, seconds: float) -> float:
        tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
        share(tensor)
        spent, done = 0.0, 0
        while spent < seconds or done < 3:
            started = time.perf_counter()
            share(tensor)
            spent += time.perf_counter() - started
            done += 1
        return spent / done * 1e9

    def make_handles(tensor: torch.Tensor) -> tuple[float, list[Any]]:
        """Seconds per handle, and all handles."""
        storage = tensor.untyped_storage()
        started = time.perf_counter()
        handles = [storage._share_cuda_() for _ in range(HANDLES)]
        return (time.perf_counter() - started) / HANDLES, handles

    def share_or_open(size: int, case: str, seconds: float) -> float:
        tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
        share(tensor)
        found: list[float] = []
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends or len(found) < 3:
            to_share, handles = make_handles(tensor)
            tensors.put(handles)
            to_open = answers.get()
            found.append(to_share if case == "share" else to_open)
        return statistics.median(found) * 1e9

    found: dict[str, turns.Case] = {}
    for name, size in SIZES.items():
        found[f"{name}, first"] = partial(first, size)
        found[f"{name}, again"] = partial(again, size)
        found[f"{name}, share"] = partial(share_or_open, size, "share")
        found[f"{name}, open"] = partial(share_or_open, size, "open")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = turns.parser(__doc__, ROUNDS, SECONDS_PER_CASE)
    options = turns.parse(parser, argv)
    if options.child is not None:
        return turns.child(options, partial(cases, options.child, options.simulated))
    if options.allocators is None:
        # PyTorch's stream-ordered allocator cannot share.
        options.allocators = ["native", "expandable", "ferro_alloc"]
    records = turns.run("benchmarks.latency.sharing", [], options)
    return turns.report(records, "a tensor shared with another process", options)


if __name__ == "__main__":
    sys.exit(main())
