"""The cost of graphs: capture and replay of a decoding step, and the memory of many graphs.

"Capture" is the time in `torch.cuda.graph`, after a warm-up: into a new pool, or into one in which
a larger graph left free memory. "Replay" is one of many consecutive replays, until its end on the
GPU. "update" and "fill_" are the host's time to write a value that graphs read. The memory is that
of one graph for each batch size of a server, largest first: the bytes reserved after
`empty_cache()` beyond those before the first capture.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.harness import turns
from benchmarks.harness.processes import Child, ChildError, say, use_allocator
from tools.gpu import gpu_count

if TYPE_CHECKING:
    import torch

    from benchmarks.models.decoding import Captured, Decoder, PoolHandle
    from ferro_alloc.graphs import ExclusiveGroup

ROUNDS = 6
SECONDS_PER_CASE = 0.5
UPDATES = 200
"""Between two synchronisations; the queue of a stream has room for about a thousand."""
REPLAYS = 20
"""Calls between two readings of the clock."""
# The memory of a graph under cudaMallocAsync is the driver's: torch counts none of it.
ALLOCATORS = ("native", "expandable", "ferro_alloc")
BATCHES = (1, 2, 4, *range(8, 129, 8))
SMOKE_BATCHES = (1, 2, 4, 8)
LONGEST = 1024
"""The tokens of a row for which the cache has room."""


@dataclass
class Record(turns.Record):
    bytes: dict[str, int] = field(default_factory=dict)
    """Reserved by the graphs in one "shared" pool and in "separate" ones, and "results": what their
    results take of either. "largest" is what the largest graph reserves alone. "exclusive,
    separate" and "exclusive, shared" are the same pools in an exclusive group, for which "floor" is
    the least: all results and the scratch of the largest graph. "exclusive, late": the group is
    made when all graphs are captured. "planned" is what `graphs.plan()` says of them."""
    joins: list[float] = field(default_factory=list)
    """Nanoseconds for each graph of "exclusive, separate" to join its group."""


def batches(smoke: bool) -> Sequence[int]:
    return SMOKE_BATCHES if smoke else BATCHES


def make_decoder(smoke: bool) -> Decoder:
    from benchmarks.models.decoding import Decoder
    from benchmarks.models.llama import ModelShape
    from benchmarks.models.workloads import SMALL

    return Decoder(SMALL if smoke else ModelShape(longest=LONGEST), max(batches(smoke)))


# ---- times


def capture_time(decoder: Decoder, rows: int, pool: PoolHandle | None, seconds: float) -> float:
    """Median nanoseconds, without releasing the memory of the previous graph."""
    import torch

    found: list[float] = []
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends or len(found) < 3:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        started = time.perf_counter()
        captured = decoder.capture(rows, pool)
        found.append(time.perf_counter() - started)
        del captured
    return statistics.median(found) * 1e9


def replay_time(graph: torch.cuda.CUDAGraph, seconds: float) -> float:
    import torch

    graph.replay()
    torch.cuda.synchronize()
    done, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < seconds or done == 0:
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
        done += REPLAYS
    return spent / done * 1e9


def host_time(write: Callable[[float], object], seconds: float) -> float:
    """Nanoseconds of a call; the GPU catches up untimed, so that its queue is never full."""
    import torch

    calls, spent, ends = 0, 0.0, time.perf_counter() + seconds
    while time.perf_counter() < ends or calls == 0:
        torch.cuda.synchronize()
        started = time.perf_counter()
        for number in range(UPDATES):
            write(number)
        spent += time.perf_counter() - started
        calls += UPDATES
    torch.cuda.synchronize()
    return spent / calls * 1e9


_kept: list[object] = []
"""Graphs and their results, until the process ends."""


def cases(smoke: bool) -> Mapping[str, turns.Case]:
    import torch

    from ferro_alloc.graphs import DeviceScalar

    decoder = make_decoder(smoke)
    smallest, some, largest = 1, batches(smoke)[3], max(batches(smoke))
    decoder.warm_up((largest, some, smallest))
    graphs = {rows: decoder.capture(rows, None) for rows in (largest, smallest)}
    _kept.extend(graphs.values())
    shared = graphs[largest][0].pool()
    return {
        f"capture, batch {some}, own pool": partial(capture_time, decoder, some, None),
        f"capture, batch {some}, shared pool": partial(capture_time, decoder, some, shared),
        **{
            f"replay, batch {rows}": partial(replay_time, graph)
            for rows, (graph, _) in graphs.items()
        },
        "tensor.fill_": partial(host_time, torch.zeros((), device="cuda").fill_),
        **{
            f"DeviceScalar.update, {dtype}": partial(
                host_time, DeviceScalar(getattr(torch, dtype), 0).update
            )
            for dtype in ("float32", "int64")
        },
    }


# ---- memory


def measure_memory(
    decoder: Decoder,
    sizes: Sequence[int],
    pool: PoolHandle | None,
    group: ExclusiveGroup | None = None,
    *,
    late: bool = False,
    joins: list[float] | None = None,
) -> tuple[int, int]:
    """Bytes reserved by a graph for each size, and those of their results. All memory is released.

    `group`: each graph joins it, all at the end if `late`. `joins` gets the time of each.
    """
    import torch

    from benchmarks.models.decoding import memory_of

    def capture(rows: int) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        captured = decoder.capture(rows, pool)
        if group is not None and not late:
            torch.cuda.synchronize()
            started = time.perf_counter()
            group.join(captured[0])
            if joins is not None:
                joins.append((time.perf_counter() - started) * 1e9)
        return captured

    def capture_all() -> Captured:
        graphs = [capture(rows) for rows in sizes]
        if group is not None:
            group.join(*(graph for graph, _ in graphs))
        return graphs

    return memory_of(capture_all)


def memory_child(options: argparse.Namespace) -> int:
    use_allocator(options.child, options.simulated)
    import torch

    decoder = make_decoder(options.smoke)
    sizes = sorted(batches(options.smoke), reverse=True)
    decoder.warm_up(sizes)
    separate, _ = measure_memory(decoder, sizes, None)
    shared, results = measure_memory(decoder, sizes, torch.cuda.graph_pool_handle())
    largest, result = measure_memory(decoder, sizes[:1], None)
    found = {"results": results, "largest": largest, "separate": separate, "shared": shared}
    if options.child == "ferro_alloc":
        from ferro_alloc.graphs import exclusive, plan

        handle = torch.cuda.graph_pool_handle()
        joins: list[float] = []
        for name, pool, group, late in (
            ("exclusive, separate", None, exclusive(), False),
            ("exclusive, late", None, exclusive(), True),
            ("exclusive, shared", handle, exclusive(handle), False),
        ):
            into = joins if pool is None and not late else None
            found[name], _ = measure_memory(decoder, sizes, pool, group, late=late, joins=into)
        found["floor"] = results + largest - result
        with torch.no_grad():
            planned = plan(
                decoder.step,
                sizes,
                pools=("separate", "shared", "exclusive shared"),
                stream=decoder.stream,
            )
        for arrangement, taken in planned.sets.items():
            found[f"planned, {arrangement}"] = taken.reserved_bytes
        say(bytes=found, joins=joins)
        return 0
    say(bytes=found, joins=[])
    return 0


def add_memory(record: Record, arguments: Sequence[str]) -> None:
    options = ["--child", record.allocator, "--memory", *arguments]
    with Child("benchmarks.graphs", options) as process:
        try:
            said = process.read()
            record.bytes, record.joins = said["bytes"], said["joins"]
        except ChildError as error:
            record.problem = str(error)


def show_memory(records: Sequence[Record], count: int) -> None:
    table = Table(f"MiB of {count} graphs", title="memory")
    working = [record for record in records if not record.problem]
    for record in working:
        table.add_column(record.allocator, justify="right")
    for what in dict.fromkeys(what for record in working for what in record.bytes):
        cells = (
            f"{record.bytes[what] / (1 << 20):,.1f}" if what in record.bytes else ""
            for record in working
        )
        table.add_row(what, *cells)
    Console().print(table)
    for record in working:
        if record.joins:
            middle, most = statistics.median(record.joins) / 1e3, max(record.joins) / 1e3
            times = f"{middle:,.0f} us in the median, {most:,.0f} at most"
            print(f"{record.allocator}: a graph joins a group in {times}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = turns.parser(__doc__, ROUNDS, SECONDS_PER_CASE)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = turns.parse(parser, argv)
    if options.memory:
        return memory_child(options)
    if options.child is not None:
        return turns.child(options, partial(cases, options.smoke))
    options.allocators = options.allocators or ALLOCATORS
    arguments = ["--smoke"] * options.smoke
    timed = turns.run("benchmarks.graphs", arguments, options)
    records = [Record(r.allocator, r.nanoseconds, r.problem) for r in timed]
    for record in records:
        add_memory(record, [*arguments, *["--simulated"] * (gpu_count() == 0)])
    show_memory(records, len(batches(options.smoke)))
    return turns.report(records, "graphs of a decoding step", options)


if __name__ == "__main__":
    sys.exit(main())
