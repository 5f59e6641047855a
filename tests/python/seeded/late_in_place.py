"""A program that waits for the uses of an address late. Prints its wrong results as JSON.

    late_in_place.py ALLOCATOR eager|captured|left_out SEED

A side stream reads memory of the main stream that is freed before the read. The main stream
requests more memory, also for larger tensors, and waits for the side stream only before it writes
to addresses that the side stream may still read. So a caching allocator that keeps free memory at
its addresses is right, and a page that moves to other addresses too early gives wrong results. In a
capture both streams are part of the graph. With `left_out` the program does not wait, which gives
wrong results.
"""

import json
import random
import sys

import torch

import ferro_alloc

ROUNDS = 40
REPLAYS = 3
MIB = 1 << 20
LARGEST = 24
READ = LARGEST // 2
"""MiB of the largest tensor that the side stream reads."""
STEP = 12_345
"""Bytes from the pattern of a round to the next one's."""
SLEEP = 2_000_000
"""GPU cycles: about a millisecond."""

allocator, kind, seed = sys.argv[1:]
if allocator != "native":
    ferro_alloc.install(ferro_alloc.Config(layout=allocator))
drawn = random.Random(int(seed))
captured = kind == "captured"
main = torch.cuda.Stream()
side = torch.cuda.Stream()


def empty(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


# The patterns of the rounds are windows of the same random bytes, no two of which are alike. Making
# them takes less time than making bytes for each round.
drawn_bytes = random.Random(0).randbytes(READ * MIB + ROUNDS * STEP)
random_bytes = torch.frombuffer(bytearray(drawn_bytes), dtype=torch.uint8).pin_memory()
noise = torch.full((LARGEST * MIB,), 0xFF, dtype=torch.uint8).pin_memory()
if captured:
    random_bytes, noise = random_bytes.cuda(), noise.cuda()
patterns = [random_bytes[number * STEP :][: READ * MIB] for number in range(ROUNDS)]
results = [empty(READ * MIB) for _ in range(8 if captured else ROUNDS)]


class LateUses:
    """Addresses that the side stream may still read, and tensors of the main stream."""

    def __init__(self) -> None:
        self.owed: list[tuple[int, int]] = []
        self.kept: list[torch.Tensor] = []

    def take(self, size: int, source: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(main):
            tensor = empty(size)
            begin, end = tensor.data_ptr(), tensor.data_ptr() + size
            if any(begin < last and first < end for first, last in self.owed):
                if kind != "left_out":
                    main.wait_stream(side)
                self.owed.clear()
            tensor.copy_(source[:size], non_blocking=True)
        return tensor

    def round(self, number: int) -> int:
        size = drawn.randint(1, READ) * MIB
        temporary = self.take(size, patterns[number])
        with torch.cuda.stream(side):
            side.wait_stream(main)
            torch.cuda._sleep(SLEEP)
            results[number][:size].copy_(temporary)
        if not captured and drawn.random() < 0.7:
            main.synchronize()
        begin = temporary.data_ptr()
        self.owed.append((begin, begin + size))
        del temporary
        for _ in range(drawn.randint(1, 3)):
            self.kept.append(self.take(drawn.randint(1, LARGEST) * MIB, noise))
            drawn.shuffle(self.kept)
            del self.kept[drawn.randint(3, 9) :]
        return size


def wrong(sizes: list[int]) -> int:
    torch.cuda.synchronize()
    return sum(
        not torch.equal(results[number][:size].cpu(), patterns[number][:size].cpu())
        for number, size in enumerate(sizes)
    )


found = 0
uses = LateUses()
if captured:
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=main):
        sizes = [uses.round(number) for number in range(len(results))]
        main.wait_stream(side)
    for _ in range(REPLAYS):
        for result in results:
            result.zero_()
        torch.cuda.synchronize()
        graph.replay()
        found += wrong(sizes)
else:
    found = wrong([uses.round(number) for number in range(ROUNDS)])
moved = ferro_alloc.status().devices[0].pages_moved if allocator == "pages" else 0
print(json.dumps({"wrong": found, "moved": moved}))
