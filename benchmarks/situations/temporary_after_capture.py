"""Memory for eager work after a capture cannot come from the free scratch of a graph's pool.

Between replays the scratch is free, but only captures into the same pool may have it.
"""

import torch

from benchmarks.situations import report


def work(x: torch.Tensor) -> torch.Tensor:
    """Two temporaries as large as `x`, and a small result."""
    return (x * 2).relu().mean()


def eager(size: int) -> list[object]:
    x = torch.zeros(size // 4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work(x)
    return [x, graph, result, work(x)]


def captured(size: int) -> list[object]:
    """The later work is a graph too, in the pool of the first."""
    x = torch.zeros(size // 4, device="cuda")
    graph, later = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work(x)
    with torch.cuda.graph(later, pool=graph.pool()):
        later_result = work(x)
    later.replay()
    return [x, graph, result, later, later_result]


if __name__ == "__main__":
    report(eager, captured)
