"""Tags of MemPools, graph pools and exclusive groups."""

import torch

import ferro_alloc
from ferro_alloc import graphs, tag, tag_pool

MIB = 1 << 20


def block(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def live():
    found = {name: t.live_bytes // MIB for name, t in ferro_alloc.tags().items()}
    return {name: mib for name, mib in found.items() if mib}


def captured(pool, mib, kept):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        kept.append(block(mib))
    return graph


# Before the first install and the first use of CUDA.
early = torch.cuda.graph_pool_handle()
tag_pool(early, "early")
ferro_alloc.install()
torch.cuda.init()
kept: list[torch.Tensor] = []
first = captured(early, 3, kept)
assert live() == {"early": 3}, live()

# A MemPool. The code's tag takes precedence, and other pools have none.
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    kept.append(block(1))
tag_pool(pool, "cache")
with torch.cuda.use_mem_pool(pool):
    kept.append(block(2))
    with tag("own"):
        kept.append(block(4))
kept.append(block(8))
other = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(other):
    kept.append(block(8))
assert live() == {"early": 3, "cache": 2, "own": 4}, live()
tag_pool(pool, "renamed")
with torch.cuda.use_mem_pool(pool):
    kept.append(block(2))
tag_pool(pool, None)
with torch.cuda.use_mem_pool(pool):
    kept.append(block(2))
assert live() == {"early": 3, "cache": 2, "own": 4, "renamed": 2}, live()
kept.clear()
assert live() == {}, live()

# A CapturePool, and a graph.
named = graphs.CapturePool("named")
tag_pool(named, "capture")
second = captured(named.handle, 2, kept)
third = torch.cuda.CUDAGraph()
with torch.cuda.graph(third):
    kept.append(block(1))
tag_pool(third, "of a graph")
fourth = captured(third.pool(), 5, kept)
assert live() == {"capture": 2, "of a graph": 5}, live()
kept.clear()

# A backward pass in a tagged pool: the tag of its forward code takes precedence.
x = torch.ones(MIB, device="cuda", requires_grad=True)
pooled = torch.cuda.MemPool()
tag_pool(pooled, "pooled")
with tag("layer"):
    y = (x * 2).sum()
plain = (x * 3).sum()
with torch.cuda.use_mem_pool(pooled):
    total = x.detach() * 2
assert live() == {"pooled": 4}, live()
del total

# A group: members, later members, members with their own tags, and pools that left. Results of its
# captures take whole pages.
one, two = (graphs.CapturePool() for _ in range(2))
members = [captured(one.handle, 1, kept), captured(two.handle, 1, kept)]
group = graphs.exclusive(one, name="group")
tag_pool(two, "two")
tag_pool(group, "grouped")
members.append(captured(one.handle, 2, kept))
group.join(two)
members.append(captured(two.handle, 2, kept))
late = graphs.CapturePool()
group.join(late)
members.append(captured(late.handle, 4, kept))
assert live() == {"grouped": 6, "two": 2}, live()
tag_pool(two, None)
members.append(captured(two.handle, 6, kept))
assert live() == {"grouped": 12, "two": 2}, live()
group.leave(late)
members.append(captured(late.handle, 6, kept))
tag_pool(group, None)
members.append(captured(one.handle, 8, kept))
assert live() == {"grouped": 12, "two": 2}, live()
for member in members:
    member.replay()
torch.cuda.synchronize()

for wrong in (None, "pool", 1.5, graphs):
    try:
        tag_pool(wrong, "x")
    except ferro_alloc.FerroError as error:
        assert "is not the handle of a graph pool" in str(error), error
    else:
        raise AssertionError(wrong)
for wrong in ("", "two\nlines"):
    try:
        tag_pool(pool, wrong)
    except ferro_alloc.FerroError as error:
        assert "tag_pool(" in str(error), error
    else:
        raise AssertionError(wrong)
print("right")
