"""Where the memory of a server with compiled steps lies: beside its graphs, or in them.

Two language models with static caches generate: each prefill is eager and has another length, and
each decoding step is recorded in trees of graphs, as by `torch.compile(mode="reduce-overhead")`.
Between replays nothing in the graphs' memory counts as allocated, but it has to stay. So peak
reserved / peak allocated says little about such a program. The measure is the largest sum of what
lives beside the graphs and of what they hold, at one time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness.processes import Child, ChildError, say, use_allocator
from benchmarks.harness.records import report_problems, store
from tools.gpu import gpu_count

ALLOCATORS = ("native", "expandable", "ferro_alloc")
MIB = 1 << 20
PREFILLS = ((16, 540), (8, 679), (4, 357), (12, 244), (2, 215), (6, 547))
"""Sequences and their lengths."""
STEPS, DRAFTS = 4, 3


@dataclass
class Record:
    """Bytes."""

    allocator: str
    peak_reserved: int = 0
    peak_allocated: int = 0
    graphs_hold: int = 0
    """What the pool of the trees holds at the end."""
    needed: int = 0
    """The least that serves it: in a prefill, the peak of what lives beside the graphs and what
    these hold then; in a recording, what is allocated."""
    problem: str = ""


def held_by_graphs() -> int:
    import torch

    segments = torch.cuda.memory_snapshot()
    return int(sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) != (0, 0)))


def measure(allocator: str, smoke: bool) -> Record:
    import torch

    from benchmarks.models.decoding import Decoder
    from benchmarks.models.llama import ModelShape

    longest = max(length for _, length in PREFILLS) + 1
    most = max(rows for rows, _ in PREFILLS)
    widths = ((2, 256), (1, 256)) if smoke else ((12, 1536), (4, 768))
    models = [
        Decoder(ModelShape(layers=layers, width=width, heads=width // 64, longest=longest), most)
        for layers, width in widths
    ]
    # The graphs alone count here, so no kernel is compiled.
    steps: list[Callable[[int], torch.Tensor]] = [
        torch.compile(model.step, backend="cudagraphs", dynamic=False) for model in models
    ]
    record = Record(allocator)

    def note_peaks() -> int:
        allocated: int = torch.cuda.max_memory_allocated()
        record.peak_allocated = max(record.peak_allocated, allocated)
        record.peak_reserved = max(record.peak_reserved, torch.cuda.max_memory_reserved())
        torch.cuda.reset_peak_memory_stats()
        return allocated

    with torch.no_grad():
        for rows, length in PREFILLS[: 2 if smoke else None]:
            note_peaks()
            for model in models:
                model.model(torch.zeros(rows, length, dtype=torch.long, device="cuda"))
            record.graphs_hold = held_by_graphs()
            record.needed = max(record.needed, note_peaks() + record.graphs_hold)
            for _ in range(STEPS):
                torch.compiler.cudagraph_mark_step_begin()
                for _ in range(DRAFTS):
                    steps[1](rows).argmax(-1)
                steps[0](rows).argmax(-1)
    torch.cuda.synchronize()
    note_peaks()
    record.graphs_hold = held_by_graphs()
    record.needed = max(record.needed, record.peak_allocated)
    return record


def child(options: argparse.Namespace) -> int:
    use_allocator(options.child, options.simulated)
    say(**vars(measure(options.child, options.smoke)))
    return 0


def run(allocator: str, arguments: Sequence[str]) -> Record:
    arguments = ["--child", allocator, *arguments]
    with Child("benchmarks.graphs.trees", arguments, {}) as process:
        try:
            return Record(**process.read())
        except ChildError as error:
            return Record(allocator, problem=str(error))


def show(records: Sequence[Record], title: str) -> None:
    columns = ("allocated", "reserved", "ratio", "graphs hold", "needed", "reserved / needed")
    table = Table("allocator", *columns, title=title, caption="peaks, MiB")
    for r in records:
        if r.problem:
            continue
        ratio, of_needed = r.peak_reserved / r.peak_allocated, r.peak_reserved / r.needed
        table.add_row(
            r.allocator,
            *(f"{size / MIB:,.0f}" for size in (r.peak_allocated, r.peak_reserved)),
            f"{ratio:.3f}",
            *(f"{size / MIB:,.0f}" for size in (r.graphs_hold, r.needed)),
            f"{of_needed:.3f}",
        )
    Console().print(table)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocators", nargs="+", choices=ALLOCATORS, default=list(ALLOCATORS))
    parser.add_argument("--smoke", action="store_true", help="small models: does it run?")
    parser.add_argument("--output", type=Path, help="where the records go, as JSON")
    parser.add_argument("--child", choices=ALLOCATORS, help=argparse.SUPPRESS)
    parser.add_argument("--simulated", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child is not None:
        return child(options)
    simulated = gpu_count() == 0
    arguments = ["--smoke"] * options.smoke + ["--simulated"] * simulated
    records = [run(allocator, arguments) for allocator in options.allocators]
    show(records, f"{'simulated GPU, ' * simulated}two models with trees of graphs")
    store(records, options.output)
    return report_problems(records)


if __name__ == "__main__":
    sys.exit(main())
