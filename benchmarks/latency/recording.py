"""The cost of a recorded history for a training step of launches only: 100 tiny layers, AdamW.

Native and ferro_alloc take turns within one process, each without a history and with one of each
level; `install()` and `uninstall()` change the allocator. A round measures each of these once, in
another order. A round's time with a history is compared with the same allocator's without one. On
the simulated GPU it is the processor's time, which other programs hardly change.

The ring of events is bounded. Python's stacks are collected, no C++ ones. "sampled" is
`ferro_alloc.record_history()`, under native the same as "alloc".
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import turns
from benchmarks.harness.processes import OURS, use_allocator
from benchmarks.harness.records import store
from benchmarks.training.switching import switch_to
from tools.gpu import gpu_count

ROUNDS = 24
SECONDS_PER_CASE = 0.25
LAYERS, WIDTH = 100, 32
ENTRIES = 100_000
OFF = "off"
LEVELS: Mapping[str, Mapping[str, Any]] = {
    OFF: {"enabled": None},
    "state": {"enabled": "state", "context": "state", "stacks": "python", "max_entries": 1},
    "alloc": {"enabled": "all", "context": "alloc", "stacks": "python", "max_entries": ENTRIES},
    "all": {"enabled": "all", "context": "all", "stacks": "python", "max_entries": ENTRIES},
}
SAMPLED = "sampled"
CASES = (*LEVELS, SAMPLED)
ALLOCATORS = ("native", OURS)


def make_step(layers: int) -> Callable[[], None]:
    import torch
    from torch import nn

    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.ones(WIDTH, WIDTH, device="cuda")

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def nanoseconds(
    step: Callable[[], None], level: str, seconds: float, now: Callable[[], float]
) -> float:
    """Nanoseconds of a step while a history of that level is recorded: the fastest of at least
    three, because other programs on the machine only ever add time."""
    import torch

    import ferro_alloc

    if level == SAMPLED:
        ferro_alloc.record_history(max_entries=ENTRIES)
    else:
        torch.cuda.memory._record_memory_history(**LEVELS[level])
    step()
    gc.collect()
    gc.disable()
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        torch.cuda.synchronize()
        started = now()
        step()
        torch.cuda.synchronize()
        times.append(now() - started)
    gc.enable()
    torch.cuda.memory._record_memory_history(enabled=None)
    return min(times) * 1e9


def measure(
    rounds: int, seconds: float, layers: int, now: Callable[[], float]
) -> list[turns.Record]:
    """Each allocator trains its own model, whose memory it allocated."""
    records = {name: turns.Record(name) for name in ALLOCATORS}
    steps = {}
    for name in ALLOCATORS:
        switch_to(name)
        steps[name] = make_step(layers)
    cases = {f"{name}, {level}": (name, level) for level in CASES for name in ALLOCATORS}
    for number in range(rounds):
        for case in turns.order(list(cases), number):
            name, level = cases[case]
            switch_to(name)
            times = records[name].nanoseconds.setdefault(level, [])
            times.append(nanoseconds(steps[name], level, seconds, now))
    return list(records.values())


def beside(times: Mapping[str, Sequence[float]], level: str) -> str:
    """Microseconds of a step, and the median of its ratio to that of the same round without."""
    ratios = (one / off for one, off in zip(times[level], times[OFF], strict=True))
    microseconds = statistics.median(times[level]) / 1e3
    return f"{microseconds:,.0f} ({statistics.median(ratios):.3f})"


def show(records: Sequence[turns.Record]) -> None:
    table = Table("microseconds a step (of the same without a history)")
    for record in records:
        table.add_column(record.allocator, justify="right")
    for level in CASES:
        table.add_row(level, *(beside(record.nanoseconds, level) for record in records))
    Console().print(table)


def main(argv: Sequence[str] | None = None) -> int:
    parser = turns.parser(__doc__, ROUNDS, SECONDS_PER_CASE)
    options = turns.parse(parser, argv)
    simulated = gpu_count() == 0
    # Computing values on the host would dominate the time.
    use_allocator("native", simulated, values=False)
    # With this variable PyTorch compiles a regular expression for each product, a fifth of such a
    # step.
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    import torch

    torch.cuda.init()
    if simulated:
        print("simulated GPU: the host's work is real, the device's takes no time")
    layers = 5 if options.smoke else LAYERS
    now = time.process_time if simulated else time.perf_counter
    records = measure(options.rounds, options.seconds, layers, now)
    show(records)
    store(records, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
