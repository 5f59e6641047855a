"""Memory of a compiled model whose graphs PyTorch records and keeps in trees.

`torch.compile(mode="reduce-overhead")` records CUDA graphs of each compiled function, one for each
shape and each sequence of functions before it in the step. All of them share one pool, whose state
is restored where paths of functions branch. A Llama-shaped model in three compiled parts trains on
two shapes, infers with and without its upper half, and trains again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.harness.processes import Child, ChildError, say, use_allocator
from benchmarks.harness.records import report_problems, store
from benchmarks.situations import measure
from tools.gpu import gpu_count

if TYPE_CHECKING:
    import torch

    from benchmarks.models.llama import Llama

# Trees of graphs need checkpoints of their pool, which cudaMallocAsync does not have.
ALLOCATORS = ("native", "expandable", "ferro_alloc")
ROWS = (8, 6)
"""Sequences in a batch: the two shapes."""
LENGTH, SMOKE_LENGTH = 513, 65
"""Tokens in a sequence; the last one is only predicted."""


@dataclass
class Record:
    allocator: str
    bytes: dict[str, int] = field(default_factory=dict)
    """The fields of `situations.Figures`; "left" is after the destruction of the trees too."""
    graphs: int = 0
    """The number of graphs in the trees at the end."""
    problem: str = ""


Part = Callable[["torch.Tensor"], "torch.Tensor"]


class CompiledModel:
    """A model's lower half, its upper half and its head, each compiled with graphs.

    `recorded_only` makes the same trees of graphs without compiling kernels.
    """

    def __init__(self, model: Llama, recorded_only: bool) -> None:
        import torch

        def half(layers: Sequence[torch.nn.Module]) -> Part:
            def run(x: torch.Tensor) -> torch.Tensor:
                length = x.shape[1]
                for layer in layers:
                    x = layer(x, model.cosine[:length], model.sine[:length])
                return x

            return compiled(run)

        def compiled(function: Part) -> Part:
            how = {"backend": "cudagraphs"} if recorded_only else {"mode": "reduce-overhead"}
            made: Part = torch.compile(function, dynamic=False, **how)
            return made

        layers = list(model.layers)
        middle = len(layers) // 2
        self.model = model
        self.lower, self.upper = half(layers[:middle]), half(layers[middle:])
        self.head = compiled(lambda x: model.head(model.norm(x)))

    def logits(self, tokens: torch.Tensor, *, early_exit: bool) -> torch.Tensor:
        import torch

        torch.compiler.cudagraph_mark_step_begin()
        x = self.lower(self.model.embedding(tokens))
        return self.head(x if early_exit else self.upper(x))


def workload(length: int) -> list[object]:
    """Returns the model, for `measure`; sequences are of `length` tokens."""
    import torch
    import torch.nn.functional as F

    from benchmarks.models.llama import ModelShape
    from benchmarks.models.workloads import SMALL, make_llama, make_tokens, train_step

    smoke = length == SMOKE_LENGTH
    shape = SMALL if smoke else ModelShape(layers=4)
    parts = CompiledModel(make_llama(shape), recorded_only=smoke)
    optimizer = torch.optim.SGD(parts.model.parameters(), lr=1e-3)

    def train(rows: int, steps: int) -> None:
        for step in range(steps):
            tokens = make_tokens(rows, length, step, shape.vocabulary).cuda()
            logits = parts.logits(tokens[:, :-1], early_exit=False)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            train_step(loss, optimizer)

    def infer(rows: int, steps: int) -> None:
        with torch.no_grad():
            for step in range(steps):
                tokens = make_tokens(rows, length, step, shape.vocabulary).cuda()
                logits = parts.logits(tokens[:, :-1], early_exit=step % 2 == 1)
                assert logits.argmax(-1).shape == (rows, length - 1)

    train(ROWS[0], 4)
    train(ROWS[1], 4)
    infer(ROWS[0], 8)
    train(ROWS[0], 2)
    return [parts]


def graphs_in_trees() -> int:
    import torch
    from torch._inductor import cudagraph_trees

    manager = cudagraph_trees.get_container(torch.cuda.current_device()).tree_manager
    nodes = [node for roots in manager.roots.values() for node in roots] if manager else []
    for node in nodes:  # grows during the loop
        nodes += [child for children in node.children.values() for child in children]
    return len(nodes)


def child(options: argparse.Namespace) -> int:
    use_allocator(options.child, options.simulated)
    import torch

    found: list[int] = []

    def release() -> None:
        found.append(graphs_in_trees())
        torch.compiler.reset()

    figures = measure(workload, SMOKE_LENGTH if options.smoke else LENGTH, release)
    say(bytes=asdict(figures), graphs=found[0])
    return 0


def run(allocator: str, arguments: Sequence[str], cache: str) -> Record:
    record = Record(allocator)
    env = {"TORCHINDUCTOR_CACHE_DIR": cache}
    arguments = ["--child", allocator, *arguments]
    with Child("benchmarks.graphs.compiled", arguments, env) as process:
        try:
            found = process.read()
        except ChildError as error:
            record.problem = str(error)
        else:
            record.bytes, record.graphs = found["bytes"], found["graphs"]
    return record


def show(records: Sequence[Record], title: str) -> None:
    table = Table("MiB", title=title)
    working = [record for record in records if not record.problem]
    for record in working:
        table.add_column(f"{record.allocator}, {record.graphs} graphs", justify="right")
    for what in working[0].bytes if working else ():
        cells = (f"{record.bytes[what] / (1 << 20):,.1f}" for record in working)
        table.add_row(what.replace("_", " "), *cells)
    Console().print(table)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocators", nargs="+", choices=ALLOCATORS, default=list(ALLOCATORS))
    parser.add_argument(
        "--smoke", action="store_true", help="a small model, not compiled: does it run?"
    )
    parser.add_argument("--output", type=Path, help="where the records go, as JSON")
    parser.add_argument("--child", choices=ALLOCATORS, help=argparse.SUPPRESS)
    parser.add_argument("--simulated", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child is not None:
        return child(options)
    simulated = gpu_count() == 0
    arguments = ["--smoke"] * options.smoke + ["--simulated"] * simulated
    with tempfile.TemporaryDirectory() as cache:
        if not options.smoke:
            # The first process to compile tunes kernels, in memory that the others do not need.
            run(options.allocators[0], arguments, cache)
        records = [run(allocator, arguments, cache) for allocator in options.allocators]
    show(records, f"{'simulated GPU, ' * simulated}a compiled model")
    store(records, options.output)
    return report_problems(records)


if __name__ == "__main__":
    sys.exit(main())
