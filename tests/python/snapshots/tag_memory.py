"""Peaks and reserved bytes of tags. Prints JSON."""

import json
import threading

import torch

import ferro_alloc
from ferro_alloc import tag

MIB = 1 << 20


def block(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def memory(name):
    found = ferro_alloc.tags().get(name)
    return None if found is None else [found.live_bytes // MIB, found.peak_bytes // MIB]


seen = {"before the first": ferro_alloc.tags()}
ferro_alloc.install()
torch.cuda.init()
assert ferro_alloc.tags() == {}

with tag("a"):
    first = block(10)
    second = block(6)
del second
with tag("b"):
    other = block(4)
seen["fell"] = [memory("a"), memory("b")]
torch.cuda.reset_peak_memory_stats()
seen["reset"] = [memory("a"), memory("b")]
with tag("a"):
    block(3)
seen["rose"] = memory("a")
del other
seen["freed"] = memory("b")
torch.cuda.reset_peak_memory_stats()
seen["forgotten"] = memory("b")


# All threads hold their maximum at once, so the peak is the sum.
def churn(barrier, kept):
    with tag("threads"):
        for size in range(1, 200):
            torch.empty(512 * size, dtype=torch.uint8, device="cuda")
        barrier.wait()
        kept.append(block(2))
        barrier.wait()
        kept.pop()


for repetition in range(5):
    torch.cuda.reset_peak_memory_stats()
    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=churn, args=(barrier, [])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory("threads") == [0, 8], (repetition, memory("threads"))


def reserved(name):
    return ferro_alloc.tags()[name].reserved_bytes


# Small blocks of two tags share a page; a large block has its own handles.
torch.cuda.empty_cache()
with tag("left"):
    left = [torch.empty(1000, dtype=torch.uint8, device="cuda") for _ in range(100)]
with tag("right"):
    right = torch.empty(1000, dtype=torch.uint8, device="cuda")
assert ferro_alloc.tags()["left"].blocks == 100
assert reserved("left") == reserved("right") == 2 * MIB
with tag("large"):
    large = block(64)
assert reserved("large") == 64 * MIB
with tag("large"):
    small = torch.empty(1000, dtype=torch.uint8, device="cuda")
assert reserved("large") == 66 * MIB
del large
assert reserved("large") == 2 * MIB
with tag("straddles"):
    straddles = [block(3) for _ in range(3)]
total = torch.cuda.memory_reserved()
assert 9 * MIB <= reserved("straddles") <= total
del small
assert reserved("large") == 0
assert [t.blocks for t in ferro_alloc.tags("cuda:0").values()] == [1, 3, 100, 1, 0, 0]
try:
    ferro_alloc.tags(99)
except ferro_alloc.FerroError as error:
    seen["unknown device"] = "there is no device 99" in str(error)
print(json.dumps(seen))
