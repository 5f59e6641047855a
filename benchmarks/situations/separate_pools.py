"""Graphs with a pool each hold the sum of their scratch memory, although they never run together.

A graph needs its scratch only while it replays. A separate pool keeps it for the graph's lifetime.
"""

import torch

from benchmarks.situations import report

GRAPHS = 4


def capture(x: torch.Tensor, pool: tuple[int, int] | None) -> list[object]:
    """A step with two temporaries as large as `x`, and a small result."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = (x * 2).relu().mean()
    return [graph, result]


def separate(size: int) -> list[object]:
    x = torch.zeros(size // 4, device="cuda")
    return [x, *(capture(x, pool=None) for _ in range(GRAPHS))]


def shared(size: int) -> list[object]:
    x = torch.zeros(size // 4, device="cuda")
    pool = torch.cuda.graph_pool_handle()
    return [x, *(capture(x, pool) for _ in range(GRAPHS))]


if __name__ == "__main__":
    report(separate, shared)
