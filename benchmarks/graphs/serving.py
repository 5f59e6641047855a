"""The memory of graphs as servers capture them: exclusive groups compared with the least possible.

"decode" is nineteen decoding steps with logits of 151,936 words in floats. "two models" is the
prefill of one model for four lengths, and the decoding of another for five batch sizes. "floor" is
all results and the scratch of the largest graph: no arrangement in which graphs replay in any order
can take less. "declared" pools join before their captures, "late" ones after all captures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.graphs.__main__ import ALLOCATORS, BATCHES
from benchmarks.harness.processes import Child, ChildError, say, use_allocator
from benchmarks.harness.records import print_table, report_problems, store
from tools.gpu import gpu_count

if TYPE_CHECKING:
    import torch

    from benchmarks.models.decoding import Captured, PoolHandle
    from ferro_alloc.graphs import ExclusiveGroup

    Step = Callable[[], torch.Tensor]
    Pools = Sequence[PoolHandle | None]

WORDS = 151_936
DECODE = sorted(BATCHES, reverse=True)
DECODE_OF_TWO, PREFILL = (128, 64, 32, 16, 8), (2048, 1024, 512, 256)


@dataclass
class Record:
    allocator: str
    bytes: dict[str, int] = field(default_factory=dict)
    problem: str = ""


class Server:
    """The steps of one or two models to capture, and the stream for the captures."""

    def __init__(self, smoke: bool) -> None:
        from benchmarks.models.decoding import Decoder
        from benchmarks.models.llama import ModelShape
        from benchmarks.models.workloads import make_llama

        words = WORDS // 16 if smoke else WORDS
        layers = 1 if smoke else 8
        self.decoder = Decoder(ModelShape(words, layers=layers, longest=1024), max(DECODE))
        other = ModelShape(words, width=768, layers=layers, heads=12, hidden=2048)
        self.other = make_llama(other).requires_grad_(False)
        self.stream = self.decoder.stream

    def decode(self, rows: int) -> Step:
        return lambda: self.decoder.step(rows).float()

    def prefill(self, length: int) -> Step:
        import torch

        tokens = torch.zeros(1, length, dtype=torch.long, device="cuda")
        return lambda: self.other(tokens)[:, -1].float()

    def warm_up(self, steps: Sequence[Step]) -> None:
        import torch

        with torch.no_grad(), torch.cuda.stream(self.stream):
            for step in [*steps, *steps]:
                step()
        torch.cuda.synchronize()

    def measure(
        self, steps: Sequence[Step], pools: Pools, late: ExclusiveGroup | None = None
    ) -> tuple[int, int]:
        """Bytes reserved by a graph of each step, and those of their results. All memory is
        released.

        `late` is the group that all join at the end.
        """
        import torch

        from benchmarks.models.decoding import memory_of

        def capture() -> Captured:
            captured = []
            for step, pool in zip(steps, pools, strict=True):
                graph = torch.cuda.CUDAGraph()
                with torch.no_grad(), torch.cuda.graph(graph, pool=pool, stream=self.stream):
                    captured.append((graph, step()))
            if late is not None:
                late.join(*(graph for graph, _ in captured))
            return captured

        return memory_of(capture)


def arrangements(server: Server, steps: Sequence[Step], models: Sequence[int]) -> dict[str, int]:
    """`models` has the model of each step. The largest step of each model comes first."""
    import torch

    def pools() -> Pools:
        made = [torch.cuda.graph_pool_handle() for _ in set(models)]
        return [made[model] for model in models]

    alone: Pools = [None] * len(steps)
    server.warm_up(steps)
    separate, results = server.measure(steps, alone)
    found = {"results": results, "separate": separate}
    found["a pool a model"], _ = server.measure(steps, pools())
    scratch = 0
    for model in set(models):
        taken, result = server.measure([steps[models.index(model)]], [None])
        scratch = max(scratch, taken - result)
    found["floor"] = results + scratch
    from ferro_alloc import is_installed
    from ferro_alloc.graphs import exclusive

    if not is_installed():
        return found
    shared = pools()
    group = exclusive(*dict.fromkeys(shared))
    found["a pool a model, exclusive"], _ = server.measure(steps, shared)
    declared = [torch.cuda.graph_pool_handle() for _ in steps]
    group = exclusive(*declared)
    found["separate, declared"], _ = server.measure(steps, declared)
    group = exclusive()
    found["separate, late"], _ = server.measure(steps, alone, group)
    return found


def child(options: argparse.Namespace) -> int:
    use_allocator(options.child, options.simulated)
    server = Server(options.smoke)
    decode = [server.decode(rows) for rows in (DECODE[::5] if options.smoke else DECODE)]
    found = {f"decode: {k}": v for k, v in arrangements(server, decode, [0] * len(decode)).items()}
    lengths, rows = PREFILL[options.smoke * 2 :], DECODE_OF_TWO[options.smoke * 3 :]
    two = [*map(server.prefill, lengths), *map(server.decode, rows)]
    models = [0] * len(lengths) + [1] * len(rows)
    found |= {f"two models: {k}": v for k, v in arrangements(server, two, models).items()}
    say(bytes=found)
    return 0


def measure(allocator: str, options: argparse.Namespace) -> Record:
    words = ["--child", allocator, *["--smoke"] * options.smoke]
    words += ["--simulated"] * (gpu_count() == 0)
    record = Record(allocator)
    with Child("benchmarks.graphs.serving", words) as process:
        try:
            record.bytes = process.read()["bytes"]
        except ChildError as error:
            record.problem = str(error)
    return record


def cell(record: Record, what: str) -> str:
    if what not in record.bytes:
        return ""
    floor = record.bytes[f"{what.split(':')[0]}: floor"]
    return f"{record.bytes[what] / (1 << 20):,.0f} ({record.bytes[what] / floor:.2f})"


def rows(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row for each arrangement."""
    working = [record for record in records if not record.problem]
    kinds = dict.fromkeys(what for record in working for what in record.bytes)
    headings = ["MiB (of the floor)", *(record.allocator for record in working)]
    return headings, [[what, *(cell(record, what) for record in working)] for what in kinds]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--simulated", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--smoke", action="store_true", help="small models: does it run?")
    parser.add_argument("--output", type=Path, help="the records, as JSON")
    options = parser.parse_args(argv)
    if options.child is not None:
        return child(options)
    records = [measure(allocator, options) for allocator in ALLOCATORS]
    store(records, options.output)
    print_table("graphs of servers", *rows(records))
    return report_problems(records)


if __name__ == "__main__":
    sys.exit(main())
