"""The cost of the debug mode of graphs: an eager decoding step, its capture, and a replay.

One process under ferro_alloc takes turns, with the mode off and on. A round measures each of these
once, and its time with the mode on is compared with the same round's without. On the simulated GPU
it is the processor's time, which other programs hardly change.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import turns
from benchmarks.harness.processes import OURS, use_allocator
from benchmarks.harness.records import store
from tools.gpu import gpu_count

if TYPE_CHECKING:
    from benchmarks.models.decoding import Decoder

ROUNDS = 12
SECONDS_PER_CASE = 0.25
ROWS = 8
MODES = ("off", "on")


def make_decoder(smoke: bool) -> Decoder:
    from benchmarks.models.decoding import Decoder
    from benchmarks.models.llama import ModelShape
    from benchmarks.models.workloads import SMALL

    decoder = Decoder(SMALL if smoke else ModelShape(longest=1024), ROWS)
    decoder.warm_up([ROWS])
    return decoder


def fastest(call: Callable[[], Any], seconds: float, now: Callable[[], float]) -> float:
    """The fewest nanoseconds of at least three calls: other programs only ever add time."""
    import torch

    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        torch.cuda.synchronize()
        started = now()
        call()
        times.append(now() - started)
    torch.cuda.synchronize()
    return min(times) * 1e9


def measure(
    decoder: Decoder, rounds: int, seconds: float, now: Callable[[], float]
) -> list[turns.Record]:
    """A record for each mode; its cases are "eager step", "capture" and "replay"."""
    import torch

    from ferro_alloc import graphs

    records = {mode: turns.Record(mode) for mode in MODES}
    for number in range(rounds):
        for mode in turns.order(list(MODES), number):
            with graphs.debug(mode == "on"), torch.no_grad():
                graph, logits = decoder.capture(ROWS, None)
                calls: Mapping[str, Callable[[], Any]] = {
                    "eager step": lambda: decoder.step(ROWS),
                    "capture": lambda: decoder.capture(ROWS, None),
                    "replay": graph.replay,  # before the next one is captured
                }
                for what, call in calls.items():
                    times = records[mode].nanoseconds.setdefault(what, [])
                    times.append(fastest(call, seconds, now))
                del graph, logits
    return list(records.values())


def show(records: Sequence[turns.Record]) -> None:
    off, on = (record.nanoseconds for record in records)
    table = Table("microseconds", *(f"debug {mode}" for mode in MODES), "on / off")
    for what in off:
        ratios = (one / other for one, other in zip(on[what], off[what], strict=True))
        medians = (f"{statistics.median(times[what]) / 1e3:,.1f}" for times in (off, on))
        table.add_row(what, *medians, f"{statistics.median(ratios):.2f}")
    Console().print(table)


def main(argv: Sequence[str] | None = None) -> int:
    parser = turns.parser(__doc__, ROUNDS, SECONDS_PER_CASE)
    options = turns.parse(parser, argv)
    simulated = gpu_count() == 0
    # Computing values on the host would dominate the time.
    use_allocator(OURS, simulated, values=False)
    if simulated:
        print("simulated GPU: the host's work is real, the device's takes no time")
    now = time.process_time if simulated else time.perf_counter
    records = measure(make_decoder(options.smoke), options.rounds, options.seconds, now)
    show(records)
    store(records, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
