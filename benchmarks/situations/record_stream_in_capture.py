"""The memory of a tensor with `record_stream` in a capture is not reused before the capture ends.

Outside of captures an event tells when the other stream is done. In a capture nothing runs and no
event completes, so native keeps the memory pending, even if the streams have already joined.
"""

import torch

from benchmarks.situations import report

LAYERS = 8


def capture(size: int, record: bool) -> list[object]:
    x, total = torch.zeros(size // 4, device="cuda"), torch.zeros((), device="cuda")
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        for layer in range(LAYERS):
            gathered = x * layer
            side.wait_stream(main)
            with torch.cuda.stream(side):
                total += gathered.mean()
            main.wait_stream(side)
            if record:
                gathered.record_stream(side)
            del gathered
    return [x, total, graph]


def recorded(size: int) -> list[object]:
    return capture(size, record=True)


def joined(size: int) -> list[object]:
    """The main stream waits for the side stream before it frees the tensor, which suffices."""
    return capture(size, record=False)


if __name__ == "__main__":
    report(recorded, joined)
