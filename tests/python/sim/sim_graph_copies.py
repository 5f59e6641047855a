"""Replays a captured graph of copies, with a fork and a join, on new inputs; compares all bytes."""

import json

import torch

WORDS, REPLAYS = 10_000, 30
static = torch.zeros(WORDS, dtype=torch.int32, device="cuda")
side = torch.cuda.Stream()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    left = static.clone()
    capturing = torch.cuda.current_stream()
    side.wait_stream(capturing)
    with torch.cuda.stream(side):
        right = left.clone()
        right2 = right.clone()
    third = left.clone()
    capturing.wait_stream(side)
    joined = torch.empty(2, WORDS, dtype=torch.int32, device="cuda")
    joined[0].copy_(right2)
    joined[1].copy_(third)

inputs = [torch.arange(i, i + WORDS, dtype=torch.int32).pin_memory() for i in range(REPLAYS)]
outputs = [torch.zeros(2, WORDS, dtype=torch.int32).pin_memory() for _ in range(REPLAYS)]
for source, output in zip(inputs, outputs, strict=True):
    static.copy_(source, non_blocking=True)
    graph.replay()
    output.copy_(joined, non_blocking=True)
torch.cuda.synchronize()
wrong = sum(
    not torch.equal(output, torch.stack([source, source]))
    for source, output in zip(inputs, outputs, strict=True)
)
print(json.dumps({"replays": REPLAYS, "wrong": wrong}))
