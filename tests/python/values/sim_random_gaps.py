"""Random writes and reads with gaps, of known and unknown tensors, compared with the host.

Prints reads that had other values (`wrong`), that had unknown numbers and did not say so
(`silent`), and that had known ones and did not say so (`unsure`). Arguments: seed, steps.
"""

import json
import random
import sys
import warnings

import torch

from ferro_alloc import sim
from ferro_alloc.sim import _values

KNOWN, MAYBE, UNKNOWN = 2, 1, 0
# Few of the last ones: their columns have more pieces than are marked one by one.
SIZES = [(64, 64), (40, 33), (300, 40), (100, 30, 3), (3000, 5), (5000,), (9, 7, 64, 10)] * 3
SIZES += [(40_000, 3), (90_000,), (700_000,), (270_000, 3)]
TYPES = [torch.uint8, torch.int32, torch.float32, torch.int64]

seed, steps = int(sys.argv[1]), int(sys.argv[2])
choose = random.Random(seed)
warnings.simplefilter("ignore")
large = torch.randn(700, 700, device="cuda") @ torch.randn(700, 700, device="cuda")
found: dict[str, list[str]] = {"wrong": [], "silent": [], "unsure": []}


class Twin:
    """A tensor on the device, the same on the host, and how sure each element is."""

    def __init__(self, device, host, sure):
        self.device, self.host, self.sure = device, host, sure

    def each(self, function):
        return Twin(function(self.device), function(self.host), function(self.sure))

    def both(self, function):
        function(self.device)
        function(self.host)

    def runs(self):
        together = 1
        for size, stride in reversed(list(zip(self.host.shape, self.host.stride(), strict=True))):
            if size > 1 and stride != together:
                break
            together *= size
        return self.host.numel() // together


def fresh():
    size, kind = choose.choice(SIZES), choose.randrange(5)
    dtype, number = choose.choice(TYPES), choose.randrange(100)
    if kind == 0:
        host = torch.randint(0, 100, size, generator=torch.Generator().manual_seed(number))
        host = host.to(dtype)
        return Twin(host.cuda(), host, torch.full(size, KNOWN))
    if kind == 1:
        host = torch.zeros(size, dtype=dtype)
        return Twin(torch.zeros(size, dtype=dtype, device="cuda"), host, torch.full(size, KNOWN))
    if kind == 2:
        host = torch.full(size, number, dtype=dtype)
        device = torch.full(size, number, dtype=dtype, device="cuda")
        return Twin(device, host, torch.full(size, KNOWN))
    device = torch.empty(size, dtype=dtype, device="cuda")
    if kind == 3:
        device.copy_(unknown(size))
    return Twin(device, torch.zeros(size, dtype=dtype), torch.full(size, UNKNOWN))


def unknown(size):
    elements = torch.Size(size).numel()
    return large.view(-1)[:elements].view(size) if elements <= large.numel() else large[0, 0]


def view(twin):
    """Some of its elements, most often with gaps."""
    for _ in range(choose.choice([1, 1, 2])):
        dimension = choose.randrange(twin.host.dim())
        size = twin.host.size(dimension)
        begin = choose.randrange(min(size, 4))
        end = size - choose.randrange(min(size - begin, 4))
        step = choose.choice([1, 2, 3, 7, 70])
        index = [slice(None)] * twin.host.dim()
        index[dimension] = slice(begin, end, step)
        twin = twin.each(lambda tensor, at=tuple(index): tensor[at])
    if choose.random() < 0.2:
        twin = twin.each(lambda tensor: tensor.transpose(0, -1))
    return twin


def least_sure(whole, part):
    """Of very many pieces, the bytes between them count too."""
    counted = whole if part.runs() > 1 << 18 else part
    return min(int(part.sure.min()), max(int(counted.sure.min()), MAYBE))


def write(whole):
    part = view(whole) if choose.random() < 0.9 else whole
    kind, number = choose.randrange(8), choose.randrange(1, 60)
    known = least_sure(whole, part) == KNOWN
    if kind == 0:
        part.both(lambda tensor: tensor.fill_(number))
        part.sure.fill_(KNOWN)
    elif kind == 1:
        values = torch.randint(0, 60, part.host.shape, dtype=torch.int16)
        part.both(lambda tensor: tensor.copy_(values.to(tensor.device)))
        part.sure.fill_(KNOWN)
    elif kind in (2, 3):
        part.both(lambda tensor: tensor.add_(number).remainder_(101))
        if not known and not stays_apart(whole, part):
            forget(whole, part, MAYBE)
    elif kind == 4:
        part.device.copy_(unknown(part.host.shape))
        forget(whole, part, UNKNOWN)
    elif kind == 5:
        other = view(choose.choice(twins))
        count = min(part.host.size(0), other.host.numel())
        source = other.each(lambda tensor: tensor.reshape(-1)[:count].clone())
        shape = [count] + [1] * (part.host.dim() - 1)
        target = part.each(lambda tensor: tensor[:count])
        target.device.copy_(source.device.view(shape))
        target.host.copy_(source.host.view(shape))
        target.sure.copy_(source.sure.view(shape))
        if (other.sure < KNOWN).any() and not stays_apart(whole, target, other):
            forget(whole, target, MAYBE)
    elif kind == 6:
        part.both(lambda tensor: tensor.masked_fill_(tensor > 50, number))
        if not known and not stays_apart(whole, part):
            forget(whole, part, MAYBE)
    elif part.host.dim() > 1:
        # Two results with gaps of one operator.
        halves = [part.each(lambda tensor, at=at: tensor[:, at::2]) for at in (0, 1)]
        halves = [half for half in halves if half.host.numel()]
        torch._foreach_add_([half.device for half in halves], 1)
        torch._foreach_add_([half.host for half in halves], 1)
        for half in halves if not known else []:
            forget(whole, half, MAYBE)


def stays_apart(whole, *parts):
    """Each element of a small tensor is as sure as what it is made of."""
    largest = max(part.host.untyped_storage().nbytes() // part.host.itemsize for part in parts)
    return max(largest, whole.host.numel()) <= 1 << 11 and parts[0].runs() <= 16


def forget(whole, part, sure):
    """The bytes between many pieces may count as unknown too."""
    part.sure.clamp_(max=sure)
    if part.runs() > 4000:
        whole.sure.clamp_(max=MAYBE)


def read(whole, step):
    kind = choose.randrange(4)
    part = whole if kind == 0 else view(whole)
    if kind == 3:
        index = tuple(choose.randrange(size) for size in part.host.shape)
        part = part.each(lambda tensor: tensor[index])
    before = sum(place.count for place in sim.uncomputed_reads())
    if kind == 2:
        values, expected = part.device.long().sum().cpu(), part.host.long().sum()
    else:
        values, expected = part.device.cpu(), part.host
    told = sum(place.count for place in sim.uncomputed_reads()) > before
    least = least_sure(whole, part)
    note = f"step {step}: {part.host.dtype} {tuple(whole.host.shape)} {part.host.stride()} {kind}"
    if not told and least == UNKNOWN:
        found["silent"].append(note)
    elif not told and not torch.equal(values, expected):
        found["wrong"].append(note)
    elif told and least == KNOWN:
        found["unsure"].append(note)


def copy(twin):
    """The driver copies whole tensors, with the marks of their bytes."""
    return twin.each(torch.clone)


twins = [fresh() for _ in range(3)]
for step in range(steps):
    action = choose.random()
    if action < 0.08:
        twins[choose.randrange(len(twins))] = fresh()
    elif action < 0.13:
        twins[choose.randrange(len(twins))] = copy(choose.choice(twins))
    elif action < 0.8:
        write(choose.choice(twins))
    else:
        read(choose.choice(twins), step)
for twin in twins:
    read(twin, steps)
computed = _values.counts()["computed"]
twins.clear()
twin = large = None
torch.cuda.synchronize()
torch.cuda.empty_cache()
left = [_values.counts()[name] for name in ("waiting", "values", "bytes")]
print(json.dumps({**{name: notes[:5] for name, notes in found.items()}, "left": left,
                  "computed": computed}))  # fmt: skip
