"""Memory of a graph pool is freed while an eager stream reads it. Prints wrong results as JSON.

    late_between_graphs.py ALLOCATOR before|during

The first graph leaves a result, which a side stream copies. The result is freed before the second
graph is captured into the same pool, or during that capture. The second graph asks for more than
the result had and replays at once; only then does its stream wait for the side stream.
"""

import json
import sys

import torch

import ferro_alloc

ROUNDS = 6
MIB = 1 << 20
SIZE = 16 * MIB

allocator, when = sys.argv[1:]
if allocator != "native":
    ferro_alloc.install(ferro_alloc.Config(layout=allocator))
main = torch.cuda.Stream()
side = torch.cuda.Stream()


def empty(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


values = torch.full((SIZE,), 1, dtype=torch.uint8, device="cuda")
noise = torch.full((3 * SIZE,), 0xFF, dtype=torch.uint8).cuda()
values.copy_(torch.full((SIZE,), 1, dtype=torch.uint8))
found = torch.empty(SIZE, dtype=torch.uint8, pin_memory=True)
wrong = 0
for _ in range(ROUNDS):
    found.zero_()
    torch.cuda.synchronize()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first, stream=main, capture_error_mode="relaxed"):
        result = empty(SIZE)
        result.copy_(values)
    with torch.cuda.stream(main):
        first.replay()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            found.copy_(result, non_blocking=True)
        if when == "before":
            del result
        second.capture_begin(pool=first.pool(), capture_error_mode="relaxed")
        if when == "during":
            del result
        larger = empty(3 * SIZE)
        larger.copy_(noise)
        second.capture_end()
        second.replay()
        main.wait_stream(side)
    torch.cuda.synchronize()
    wrong += not bool((found == 1).all())
    del first, second, larger
print(json.dumps({"wrong": wrong}))
