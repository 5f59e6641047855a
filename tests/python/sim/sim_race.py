"""Moves known bytes through two streams, with one synchronisation left out on request.

Argument: the mistake, one of none, wait, record_stream. Prints the number of rounds with wrong
bytes.
"""

import json
import sys

mistake = sys.argv[1]

import torch

ROUNDS, WORDS = 200, 4096
side = torch.cuda.Stream()
main = torch.cuda.current_stream()
sources = [torch.full((WORDS,), i, dtype=torch.int32).pin_memory() for i in range(ROUNDS)]
results = [torch.zeros(WORDS, dtype=torch.int32).pin_memory() for _ in range(ROUNDS)]
noise = torch.full((WORDS,), -1, dtype=torch.int32).pin_memory()

for source, result in zip(sources, results, strict=True):
    x = torch.empty(WORDS, dtype=torch.int32, device="cuda")
    x.copy_(source, non_blocking=True)
    if mistake != "wait":
        side.wait_stream(main)
    with torch.cuda.stream(side):
        result.copy_(x, non_blocking=True)
    if mistake != "record_stream":
        x.record_stream(side)
    del x
    # Gets the block of `x`, if the allocator considers it free.
    y = torch.empty(WORDS, dtype=torch.int32, device="cuda")
    y.copy_(noise, non_blocking=True)
    del y
torch.cuda.synchronize()
wrong = sum(not torch.equal(s, r) for s, r in zip(sources, results, strict=True))
print(json.dumps({"rounds": ROUNDS, "wrong": wrong}))
