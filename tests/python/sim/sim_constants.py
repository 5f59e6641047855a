"""Constants that kernels of PyTorch write are real. Prints them as JSON."""

import json
import sys

import torch

source = torch.zeros(8, dtype=torch.int32, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    captured = torch.full((8,), 5, dtype=torch.int32, device="cuda")
before = captured.tolist()
graph.replay()
json.dump(
    {
        "values": [
            torch.full((3,), value, dtype=dtype, device="cuda").tolist()
            for value, dtype in (
                (1, torch.int32),
                (-2, torch.int64),
                (True, torch.bool),
                (0.5, torch.bfloat16),
                (0.25, torch.float32),
            )
        ],
        "before the replay": before,
        "after it": captured.tolist(),
        "small sum": source.add(1).tolist() == [1] * 8,
        "large": bool((torch.full((1 << 20,), 7.0, device="cuda").cpu() == 7).all()),
    },
    sys.stdout,
)
