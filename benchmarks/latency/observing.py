"""The cost of observing: statistics and snapshots of many live blocks, and recorded histories.

`stats`, `allocated` and `snapshot` are calls with that number of live blocks; `history` is one
allocation and its release while a history of that level is recorded.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from benchmarks.harness import turns

# Rounds are short and many, because the host of a GPU drifts within seconds.
ROUNDS = 20
SECONDS_PER_CASE = 0.06
BLOCKS = 100_000
LEVELS: Mapping[str, Mapping[str, str | None]] = {
    "off": {},
    "state": {"enabled": "state", "context": "state"},
    "no contexts": {"enabled": "all", "context": None},
    "alloc": {"enabled": "all", "context": "alloc"},
    "all": {"enabled": "all", "context": "all"},
}


_kept: list[object] = []
"""The live blocks, until the process ends."""


def repeated(call: Callable[[], object]) -> turns.Case:
    """Nanoseconds a call, at least three of them.

    Python's garbage collector is off: it visits the live tensors during some calls, and took three
    quarters of a snapshot's time.
    """

    def run(seconds: float) -> float:
        gc.collect()
        gc.disable()
        done, started = 0, time.perf_counter()
        while (spent := time.perf_counter() - started) < seconds or done < 3:
            call()
            done += 1
        gc.enable()
        return spent / done * 1e9

    return run


def cases(blocks: int) -> Mapping[str, turns.Case]:
    import torch

    live = [
        torch.empty(512 + 512 * (i % 7), dtype=torch.uint8, device="cuda") for i in range(blocks)
    ]
    del live[::10]  # holes, as programs have them

    def allocations() -> None:
        for _ in range(200):
            torch.empty(1000, device="cuda")

    def history(level: str, seconds: float) -> float:
        settings = {"stacks": "python", "max_entries": 100_000, **LEVELS[level]}
        if level != "off":
            torch.cuda.memory._record_memory_history(**settings)
        nanoseconds = repeated(allocations)(seconds) / 200
        torch.cuda.memory._record_memory_history(enabled=None)
        return nanoseconds

    recorded = "cudaMallocAsync" not in torch.cuda.get_allocator_backend()
    found = {
        "memory_stats": repeated(torch.cuda.memory_stats),
        "memory_allocated": repeated(torch.cuda.memory_allocated),
    }
    if recorded:
        found["memory_snapshot"] = repeated(torch.cuda.memory_snapshot)
        found.update({f"history: {level}": partial(history, level) for level in LEVELS})
    _kept.extend(live)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = turns.parser(__doc__, ROUNDS, SECONDS_PER_CASE)
    parser.add_argument("--blocks", type=int, default=BLOCKS, help="live ones")
    options = turns.parse(parser, argv)
    if options.smoke:
        options.blocks = 1_000
    if options.child is not None:
        return turns.child(options, partial(cases, options.blocks))
    arguments = ["--blocks", str(options.blocks)]
    records = turns.run("benchmarks.latency.observing", arguments, options)
    return turns.report(records, f"looking, with {options.blocks:,} blocks", options)


if __name__ == "__main__":
    sys.exit(main())
