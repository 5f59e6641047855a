"""Graphs captured in ascending order of size make their shared pool grow with each of them.

The free memory of a small graph is too small for a larger one, which takes new memory. The free
memory of the largest graph suffices for all others.
"""

import torch

from benchmarks.situations import report

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


def capture_all(size: int, batches: tuple[int, ...]) -> list[object]:
    """One graph for each batch, all in one pool, with scratch in proportion."""
    rows = torch.zeros(max(batches), size // 4 // max(batches), device="cuda")
    pool = torch.cuda.graph_pool_handle()
    alive: list[object] = [rows]
    for batch in batches:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = (rows[:batch] * 2).relu().mean(dim=1)
        alive += [graph, result]
    return alive


def ascending(size: int) -> list[object]:
    return capture_all(size, BATCHES)


def descending(size: int) -> list[object]:
    return capture_all(size, BATCHES[::-1])


if __name__ == "__main__":
    report(ascending, descending)
