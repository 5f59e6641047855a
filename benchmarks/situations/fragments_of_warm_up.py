"""A capture cannot use memory freed by a warm-up if live tensors lie in the same segments.

A capture begins with `empty_cache()`, which under native releases only whole free segments. Tensors
created after a warm-up, such as caches, lie in the segments of its scratch.
"""

import torch

from benchmarks.situations import report

BUFFERS = 4


def warm_up(size: int) -> None:
    scratch = [torch.zeros(size // 4, device="cuda") for _ in range(BUFFERS)]
    del scratch


def make_buffers(size: int) -> list[object]:
    """Each is five eighths of a tensor of the warm-up: two do not fit into one of these."""
    return [torch.zeros(size // 4 * 5 // 8, device="cuda") for _ in range(BUFFERS)]


def capture(size: int) -> list[object]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scratch = [torch.zeros(size // 4, device="cuda") for _ in range(BUFFERS)]
        result = torch.stack([tensor.mean() for tensor in scratch])
    return [graph, result]


def warm_up_first(size: int) -> list[object]:
    warm_up(size)
    return [*make_buffers(size), *capture(size)]


def buffers_first(size: int) -> list[object]:
    buffers = make_buffers(size)
    warm_up(size)
    return [*buffers, *capture(size)]


if __name__ == "__main__":
    report(warm_up_first, buffers_first)
