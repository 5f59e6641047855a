"""Memory freed during a capture is released late: `empty_cache()` must wait for its end.

A deleted graph releases its unused memory, but not before `empty_cache()`, and not the segment of a
live result.
"""

import torch

from benchmarks.situations import report

OLD = 4


def freed_in_capture(size: int) -> list[object]:
    x = torch.zeros(size // 4, device="cuda")
    old = [torch.zeros(size // 4, device="cuda") for _ in range(OLD)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        del old
        torch.cuda.empty_cache()
        result = (x * 2).relu().mean()
    return [x, graph, result]


def freed_before(size: int) -> list[object]:
    x = torch.zeros(size // 4, device="cuda")
    old = [torch.zeros(size // 4, device="cuda") for _ in range(OLD)]
    del old
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = (x * 2).relu().mean()
    return [x, graph, result]


def graph_deleted(size: int) -> list[object]:
    """Only the small result is kept."""
    x = torch.zeros(size // 4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = (x * 2).relu().mean()
    del graph
    return [x, result]


if __name__ == "__main__":
    report(freed_in_capture, freed_before, graph_deleted)
