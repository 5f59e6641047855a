"""Random programs on tensors of which some elements are unknown, compared with the host.

On the host each tensor is there twice, with other numbers in place of the unknown ones. Elements
that are equal in both are known, because the operators map different numbers to different ones.
Prints reads of other values (`wrong`), of unknown elements that count as known (`silent`) and of
known ones that count as unknown (`lost`). Arguments: seed, steps.
"""

import json
import random
import sys
import warnings

import torch

from ferro_alloc import sim
from ferro_alloc.sim import _values

seed, steps = int(sys.argv[1]), int(sys.argv[2])
choose = random.Random(seed)
generator = torch.Generator().manual_seed(seed)
warnings.simplefilter("ignore")
large = torch.randn(700, 700, device="cuda") @ torch.randn(700, 700, device="cuda")
found: dict[str, list[str]] = {"wrong": [], "silent": [], "lost": []}


class Triple:
    """A tensor on the device, and twice on the host."""

    def __init__(self, *tensors):
        self.tensors = tensors
        self.shape = tensors[1].shape

    def each(self, function, *others):
        return Triple(*map(function, self.tensors, *(other.tensors for other in others)))


def known(shape):
    host = torch.randint(0, 1000, shape, generator=generator)
    return Triple(host.cuda(), host, host.clone())


def unknown(shape):
    fillers = [torch.randint(1 << 30, shape, generator=generator) for _ in range(2)]
    return Triple(large.view(-1)[: fillers[0].numel()].view(shape).long(), *fillers)


def same(host):
    """A tensor that is known, such as an index."""
    return Triple(host.cuda(), host, host)


def fresh():
    shape = choose.choice([(6,), (4, 5), (3, 4, 2), (1, 7), (20, 3)])
    made = choose.choice([known, known, unknown])(shape)
    if choose.random() < 0.7:
        part = view(made)
        part.each(lambda to, new: to.copy_(new), choose.choice([known, unknown])(part.shape))
    return made


def view(triple):
    kind, dimension = choose.randrange(4), choose.randrange(len(triple.shape))
    size = triple.shape[dimension]
    begin = choose.randrange(size)
    length = choose.randrange(1, size - begin + 1)
    if kind == 0:
        return triple.each(lambda t: t.transpose(0, -1))
    if kind == 1 and len(triple.shape) > 1:
        return triple.each(lambda t: t.select(dimension, begin))
    if kind == 2:
        return triple.each(lambda t: t.unfold(dimension, 1, 2).squeeze(-1))
    return triple.each(lambda t: t.narrow(dimension, begin, length))


def indices(triple, dimension):
    size = triple.shape[dimension]
    return same(torch.randint(size, (choose.randrange(1, 6),), generator=generator))


def mask(triple):
    return same(torch.rand(triple.shape, generator=generator) < 0.5)


def move(x):
    """A result that consists of elements of `x` and of others."""
    dimension = choose.randrange(len(x.shape))
    other = choose.choice([known, unknown])(x.shape)
    kind = choose.randrange(10)
    if kind == 0:
        return x.each(lambda t, o: torch.cat([t, o, t], dimension), other)
    if kind == 1:
        return x.each(lambda t, o: torch.stack([t, o], dimension), other)
    if kind == 2:
        return x.each(lambda t, m, o: torch.where(m, t, o), mask(x), other)
    if kind == 3:
        return x.each(lambda t, i: t.index_select(dimension, i), indices(x, dimension))
    if kind == 4:
        return x.each(lambda t, i: t[i], indices(x, 0))
    if kind == 5:
        return x.each(lambda t: t.roll(2, dimension).flip(0))
    if kind == 6:
        return x.each(lambda t: torch.nn.functional.pad(t, (1, 2), value=3))
    if kind == 7:
        index = same(torch.randint(x.shape[dimension], x.shape, generator=generator))
        return x.each(lambda t, i: t.gather(dimension, i), index)
    if kind == 8:
        return x.each(lambda t, m: t[m], mask(x))
    return x.each(lambda t: t.repeat(*[1] * (t.dim() - 1), 2) if t.dim() else t.expand(3).clone())


def change(x):
    kind, number = choose.randrange(6), choose.randrange(1, 50)
    # In wholly unknown tensors, numbers that come from the host do not count.
    filler = same(torch.tensor(number))
    if kind == 0:
        return x.each(lambda t: t + number)
    if kind == 1:
        return x.each(lambda t: (3 * t - number).neg())
    if kind == 2:
        return x.each(lambda t: t.double().div(8).mul(8).long())
    if kind == 3:
        return x.each(lambda t, o: o - t, known(x.shape))
    if kind == 4:
        return x.each(lambda t, m, n: t.masked_fill(m, n), mask(x), filler)
    return x.each(lambda t: t.bitwise_xor(number))


def write(x):
    part = view(x) if choose.random() < 0.6 else x
    if any(tensor.numel() == 0 for tensor in part.tensors):
        return
    dimension, number = choose.randrange(len(part.shape)), choose.randrange(1, 50)
    new = choose.choice([known, unknown])(part.shape)
    kind = choose.randrange(6)
    if kind == 0:
        part.each(lambda t: t.add_(number))
    elif kind == 1:
        part.each(lambda t, o: t.copy_(o), new)
    elif kind == 2:
        part.each(lambda t, m, n: t.masked_fill_(m, n), mask(part), same(torch.tensor(number)))
    elif kind == 3:
        rows = indices(part, dimension)
        part.each(lambda t, i, n: t.index_fill_(dimension, i, n), rows, same(torch.tensor(number)))
    elif kind == 4:
        rows = same(torch.randperm(part.shape[0], generator=generator)[:2])
        part.each(lambda t, i, o: t.index_put_((i,), o[: len(i)]), rows, new)
    else:
        order = torch.rand(part.shape, generator=generator).argsort(dimension)
        part.each(lambda t, i, o: t.scatter_(dimension, i, o), same(order), new)


def read(x, step):
    places = [choose.randrange(x.tensors[1].numel()) for _ in range(8)]
    for place in places:
        there, one, other = (tensor.reshape(-1)[place] for tensor in x.tensors)
        before = sum(read.count for read in sim.uncomputed_reads())
        value = there.cpu()
        told = sum(read.count for read in sim.uncomputed_reads()) > before
        note = f"step {step}: {tuple(x.shape)}, element {place}"
        if not told and one != other:
            found["silent"].append(note)
        elif not told and value != one:
            found["wrong"].append(note)
        elif told and one == other:
            found["lost"].append(note)


triples = [fresh() for _ in range(3)]
for step in range(steps):
    action, x = choose.random(), choose.choice(triples)
    if len(triples) < 4 or action < 0.1:
        triples.append(fresh())
    elif action < 0.35:
        write(x)
    elif action < 0.75:
        made = choose.choice([move, change])(view(x) if choose.random() < 0.4 else x)
        # More elements may be more parts than are told apart.
        if 0 < made.tensors[1].numel() <= 64:
            triples.append(made)
    else:
        read(x, step)
    if len(triples) > 10:
        triples.pop(choose.randrange(len(triples)))
triples.clear()
x = made = large = None
torch.cuda.synchronize()
torch.cuda.empty_cache()
left = [_values.counts()[name] for name in ("waiting", "values", "bytes")]
print(json.dumps({**{name: notes[:5] for name, notes in found.items()}, "left": left}))
