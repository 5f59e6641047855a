"""Gradients that a capture accumulates on another stream are not reused before it ends.

Autograd adds to `.grad` on the stream on which a weight was first used, for as long as something
keeps its accumulator alive, as data-parallel wrappers do. A backward pass on another stream then
uses each new gradient on both streams, as with `record_stream`.
"""

import torch

from benchmarks.situations import report

LAYERS = 8


def capture(size: int, stream: torch.cuda.Stream, accumulating: torch.cuda.Stream) -> list[object]:
    weights = [torch.zeros(size // 4, device="cuda", requires_grad=True) for _ in range(LAYERS)]
    x, graph = torch.zeros(size // 4, device="cuda"), torch.cuda.CUDAGraph()
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    torch.cuda.synchronize()
    with torch.cuda.stream(accumulating):
        accumulators = [w.view_as(w).grad_fn.next_functions[0][0] for w in weights]
    with torch.cuda.graph(graph, stream=stream):
        loss = torch.stack([(weight * x).mean() for weight in weights]).sum()
        loss.backward()
    return [weights, x, accumulators, graph, loss.detach()]


def another_stream(size: int) -> list[object]:
    return capture(size, torch.cuda.Stream(), torch.cuda.Stream())


def same_stream(size: int) -> list[object]:
    stream = torch.cuda.Stream()
    return capture(size, stream, stream)


if __name__ == "__main__":
    report(another_stream, same_stream)
