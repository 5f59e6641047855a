"""A program without `record_stream` that waits late; prints how many of its results were wrong.

    late_wait_example.py ALLOCATOR copies|kernels

Memory of the main stream is freed while it is idle and a side stream has yet to read it. Other
streams request memory. Then the main stream waits for the side stream before its own next request.
Kernels compute nothing on the simulated GPU, so copies write all bytes there.
"""

import json
import sys

import torch

import ferro_alloc

ROUNDS = 40
WORDS = 1 << 20
LARGER = 3 << 19
SLEEP = 5_000_000
"""GPU cycles: some milliseconds."""

allocator, work = sys.argv[1:]
if allocator != "native":
    ferro_alloc.install(ferro_alloc.Config(layout=allocator))

main = torch.cuda.Stream()
side = torch.cuda.Stream()
bystander = torch.cuda.Stream()
kernels = work == "kernels"
patterns = torch.arange(ROUNDS + 2, dtype=torch.int32).repeat_interleave(WORDS)
patterns = patterns.view(ROUNDS + 2, WORDS).pin_memory()
noise = torch.full((LARGER,), 0x5A5A5A5A, dtype=torch.int32).pin_memory()


def empty(words: int) -> torch.Tensor:
    return torch.empty(words, dtype=torch.int32, device="cuda")


def write(tensor: torch.Tensor, value: int) -> None:
    if kernels:
        tensor.fill_(value)
    elif value < 0:
        tensor.copy_(noise[: tensor.numel()], non_blocking=True)
    else:
        tensor.copy_(patterns[value], non_blocking=True)


def copy(source: torch.Tensor) -> torch.Tensor:
    if kernels:
        return source * 1
    target = empty(source.numel())
    target.copy_(source)
    return target


results, kept = [], []
for number in range(ROUNDS):
    with torch.cuda.stream(main):
        temporary = empty(WORDS)
        write(temporary, number)
    with torch.cuda.stream(side):
        side.wait_stream(main)
        if kernels:
            torch.cuda._sleep(SLEEP)
        result = copy(temporary)
    main.synchronize()
    del temporary
    for stream in (side, bystander):
        with torch.cuda.stream(stream):
            kept.append(empty(LARGER))
            write(kept[-1], -1)
    # This wait is early enough: the memory's stream requests none before it.
    main.wait_stream(side)
    with torch.cuda.stream(main):
        reused = empty(WORDS)
        write(reused, number + 1)
    side.synchronize()
    bystander.synchronize()
    results.append(result.cpu())
    main.synchronize()
    del reused, result

wrong = sum(not torch.equal(found, patterns[i]) for i, found in enumerate(results))
print(json.dumps({"rounds": len(results), "wrong": wrong}))
