"""Soft and hard limits of tags."""

import logging
import threading

import torch

import ferro_alloc
from ferro_alloc import set_tag_limit, tag

MIB = 1 << 20
set_tag_limit("early", hard=2 * MIB)  # before the install and the first use of CUDA
ferro_alloc.install()
torch.cuda.init()


def block(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def live(name):
    return ferro_alloc.tags()[name].live_bytes // MIB


def refused(name, make):
    """The error of a request; nothing else changes."""
    before = ferro_alloc.tags(), torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    peak = torch.cuda.max_memory_allocated()
    try:
        with tag(name):
            make()
    except torch.OutOfMemoryError as error:
        ferro_alloc._load.load().check_invariants(0)
        after = ferro_alloc.tags(), torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        assert before == after, (before, after)
        assert torch.cuda.max_memory_allocated() == peak
        assert ferro_alloc.explain(error) is None
        return str(error)
    raise AssertionError("the request was served")


with tag("early"):
    early = block(2)
assert "'early'" in refused("early", lambda: block(1))

# A hard limit: the error names the tag, its bytes and its limit; other tags are served.
set_tag_limit("kv cache", hard="8MiB")
with tag("kv cache"):
    kept = [block(3), block(4)]
text = refused("kv cache", lambda: block(2))
assert text == (
    "CUDA out of memory. Tried to allocate 2.00 MiB with the tag 'kv cache', whose hard limit on "
    "each GPU is 8.00 MiB: on GPU 0 it has 7.00 MiB live in 2 blocks. Free memory of this tag, or "
    "set another limit with ferro_alloc.set_tag_limit()."
), text
with tag("kv cache"):
    kept.append(block(1))  # exactly the limit
assert "3 blocks" in refused("kv cache", lambda: torch.empty(1, device="cuda"))
assert live("kv cache") == 8
with tag("other"):
    other = block(20)
untagged = block(20)
kept.pop(0)
with tag("kv cache"):
    kept.append(block(3))
# The first request of a device, and one beyond the card, are refused by the limit too.
assert "1024.00 GiB" in refused("kv cache", lambda: block(1 << 20))
set_tag_limit("kv cache", hard="16MiB")
with tag("kv cache"):
    kept.append(block(8))
set_tag_limit("kv cache")
with tag("kv cache"):
    kept.append(block(8))
kept.clear()

# An out-of-memory error of the card is unchanged, and leaves nothing behind.
set_tag_limit("big", hard="4TiB")
try:
    with tag("big"):
        block(1 << 20)
except torch.OutOfMemoryError as error:
    assert ferro_alloc.explain(error) is not None, error
assert "big" not in ferro_alloc.tags()

# Many threads request at once, and get exactly as many blocks as the limit allows.
set_tag_limit("shared", hard=40 * 512)
for _ in range(20):
    held, failed, barrier = [], [], threading.Barrier(8)

    def take(held=held, failed=failed, barrier=barrier):
        barrier.wait()
        with tag("shared"):
            for _ in range(8):
                try:
                    held.append(torch.empty(512, dtype=torch.uint8, device="cuda"))
                except torch.OutOfMemoryError:
                    failed.append(1)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(held), len(failed)) == (40, 24), (len(held), len(failed))
    assert ferro_alloc.tags()["shared"].peak_bytes == 40 * 512
    held.clear()

# A soft limit: the callback runs once for each crossing, after the request and without a lock, so
# it may free and allocate.
calls = []
cache = []


def evict(name, live_bytes, limit):
    calls.append((name, live_bytes // MIB, limit // MIB))
    cache.clear()
    kept.append(block(1))
    ferro_alloc.tags()
    torch.cuda.memory._snapshot()


set_tag_limit("cache", soft="10MiB", hard="20MiB", on_soft=evict)
with tag("cache"):
    for mib in (5, 5):
        cache.append(block(mib))
    assert calls == []
    third = block(2)
    assert calls == [("cache", 12, 10)]
    assert cache == []
    assert live("cache") == 3  # the third block, and the callback's block
    fourth = block(8)
    assert calls.pop() == ("cache", 11, 10)
    fifth = block(1)  # already above the limit
    assert len(calls) == 1
    del third, fourth, fifth
    kept.clear()
    sixth = block(11)
    assert len(calls) == 2
    kept.clear()
    assert "'cache'" in refused("cache", lambda: block(10))  # no crossing, no call
    assert len(calls) == 2
del sixth
kept.clear()
calls.clear()

# The limit also holds in the thread of autograd, and with a pool's tag.
x = torch.ones(3 * MIB, device="cuda", requires_grad=True)
y = (x * 2).sum()
with tag("cache"):
    y.backward()
assert calls == [("cache", 12, 10)], calls
x.grad = None
kept.clear()
calls.clear()
pool = torch.cuda.MemPool()
ferro_alloc.tag_pool(pool, "cache")
with torch.cuda.use_mem_pool(pool):
    pooled = block(11)
    try:
        block(10)
    except torch.OutOfMemoryError as error:
        assert "'cache'" in str(error)
    else:
        raise AssertionError
assert calls == [("cache", 11, 10)], calls
del pooled
kept.clear()

# The block of a group's capture is larger than its request, so only the block itself shows that the
# limit has no room.
member = ferro_alloc.graphs.CapturePool()
group = ferro_alloc.graphs.exclusive(member)
ferro_alloc.tag_pool(group, "grouped")
set_tag_limit("grouped", hard=15 * MIB // 2)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, pool=member.handle):
    result = block(4)
    try:
        block(3)
    except torch.OutOfMemoryError as error:
        assert "'grouped'" in str(error)
        assert "4.00 MiB live in 1 block." in str(error), error
    else:
        raise AssertionError
assert live("grouped") == 4
graph.replay()
del result
ferro_alloc._load.load().check_invariants(0)


# A callback that raises: its error is logged, and the request is served.
class Records(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


records = Records()
logging.getLogger("ferro_alloc").addHandler(records)
set_tag_limit("cache", soft=0, on_soft=lambda *facts: 1 // 0)
with tag("cache"):
    served = block(1)
assert len(records.texts) == 1
assert "'cache'" in records.texts[0], records.texts
del served

for wrong in (
    {"soft": 1},
    {"on_soft": evict},
    {"soft": 2, "hard": 1, "on_soft": evict},
    {"hard": -1},
    {"hard": "8"},
    {"hard": 1.5},
    {"soft": 1, "on_soft": 3},
):
    try:
        set_tag_limit("cache", **wrong)
    except ferro_alloc.FerroError as error:
        assert "set_tag_limit" in str(error) or "size" in str(error), error
    else:
        raise AssertionError(wrong)
try:
    set_tag_limit("", hard=1)
except ferro_alloc.FerroError as error:
    assert "set_tag_limit(" in str(error)
else:
    raise AssertionError
print("right")
