"""The simulated GPU computes only values that the host reads. Prints counts of the cases."""

import gc
import json

import torch

from ferro_alloc import sim
from ferro_alloc.sim import _values

ELEMENTS = 100_000_000


def computed(function):
    """The recipes that ran and those that wait, counted from before the function."""
    before = _values.counts()
    function()
    after = _values.counts()
    return after["computed"] - before["computed"]


def left():
    gc.collect()
    torch.cuda.empty_cache()
    return [_values.counts()[name] for name in ("waiting", "values", "bytes")]


def draw_and_mask():
    x = torch.rand(ELEMENTS, device="cuda")
    y = torch.nn.functional.dropout(x, 0.1)
    y.masked_fill_(x > 0.5, 0)
    torch.zeros(ELEMENTS, device="cuda").add_(y)
    torch.randperm(1000, device="cuda").sort()


def read_parts():
    """The range, the addition and the sum are each computed once; a copy has the same value."""
    kept = torch.arange(ELEMENTS // 100, device="cuda")
    torch.ones(ELEMENTS, device="cuda")
    total = (kept + 1).sum()
    counts = [computed(total.item), computed(total.item)]
    return [*counts, computed(lambda: kept.clone().view(-1, 10)[5].tolist())]


def keep_parts():
    """Clones of small parts hold nothing else once their values are computed."""
    host = torch.arange(ELEMENTS // 100)
    before = _values.counts()["bytes"]
    parts = [host.cuda()[i : i + 100].clone() for i in range(10)]
    parts += [torch.arange(ELEMENTS // 100, device="cuda")[i : i + 100].clone() for i in range(10)]
    assert [part[0].item() for part in parts] == 2 * list(range(10))
    return left()[2] - before


def add_often(tensor, times):
    for _ in range(times):
        tensor.add_(1)


found = {"unread": computed(draw_and_mask), "unread_left": left()}
found["read"], found["read_left"] = read_parts(), left()
found["parts"] = keep_parts()
x = torch.zeros(1000, dtype=torch.long, device="cuda")
add_often(x, 120_000)
found["waiting"] = _values.counts()["waiting"]
found["chain"] = x.unique().tolist()
add_often(x, 30_000)
before = _values.counts()["waiting"]
x.zero_()
found["overwritten"] = [before, _values.counts()["waiting"]]
# Unknown numbers are not computed, and neither are results that depend on them.
large = torch.randn(1000, 1000, device="cuda", dtype=torch.bfloat16)
large = large @ large
found["unknown"] = computed(lambda: (large[:100] * 2 + 1).softmax(-1).sum().item())
found["reads"] = [read.operator for read in sim.uncomputed_reads()]
print(json.dumps(found))
