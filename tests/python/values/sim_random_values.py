"""Random programs on known tensors, compared with the host: writes in place, through views, and by
copies from either side; frees; sizes that depend on values. Prints the differences."""

import json
import random
import sys

import torch

from ferro_alloc import sim
from ferro_alloc.sim import _values

seed, steps = int(sys.argv[1]), int(sys.argv[2])
choose = random.Random(seed)
SIZES = [(7,), (300, 11), (1000, 40), (600, 5, 110), (65_537,), (400, 800)]
pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
wrong: list[str] = []


def both(pair, function):
    return tuple(function(tensor) for tensor in pair)


def fresh():
    size = choose.choice(SIZES)
    kind = choose.randrange(6)
    low, high = choose.randrange(-50, 0), choose.randrange(1, 50)
    elements = torch.Size(size).numel()
    if kind == 0:
        host = torch.randint(low, high, size, generator=torch.Generator().manual_seed(high))
        return (host.pin_memory() if choose.random() < 0.5 else host).to("cuda"), host.clone()
    if kind == 1:
        return both(("cuda", "cpu"), lambda d: torch.arange(elements, device=d).view(size))
    if kind == 2:
        return both(("cuda", "cpu"), lambda d: torch.full(size, low, device=d))
    if kind == 3:
        return both(("cuda", "cpu"), lambda d: torch.zeros(size, dtype=torch.long, device=d))
    if kind == 4:
        return both(("cuda", "cpu"), lambda d: torch.ones(size, dtype=torch.int32, device=d).long())
    state = choose.randrange(1000)
    torch.cuda.manual_seed(state)
    drawn = torch.randint(low, high, size, device="cuda")
    torch.cuda.manual_seed(state)
    return drawn, torch.randint(low, high, size, device="cuda").cpu()


def view(pair):
    """Some of the tensors' elements, at the same places in both."""
    tensor = pair[0]
    dimension = choose.randrange(tensor.dim())
    size = tensor.size(dimension)
    begin = choose.randrange(size)
    end = choose.randrange(begin, size) + 1
    step = choose.choice([1, 1, 2, 3])
    part = both(pair, lambda t: t.narrow(dimension, begin, end - begin)[::1])
    if step > 1:
        index = [slice(None)] * tensor.dim()
        index[dimension] = slice(None, None, step)
        part = both(part, lambda t: t[tuple(index)])
    if tensor.dim() == 2 and choose.random() < 0.3:
        part = both(part, torch.Tensor.t)
    return part


def write(pair):
    kind, number = choose.randrange(8), choose.randrange(1, 9)
    part = view(pair) if choose.random() < 0.6 else pair
    if kind == 0:
        both(part, lambda t: t.add_(number))
    elif kind == 1:
        both(part, lambda t: t.fill_(number))
    elif kind == 2:
        both(part, lambda t: t.masked_fill_(t % 3 == 0, number))
    elif kind == 3:
        values = torch.randint(
            0, 99, tuple(part[0].shape), generator=torch.Generator().manual_seed(9)
        )
        both(part, lambda t: t.copy_(values))
    elif kind == 4:
        both(part, lambda t: t.mul_(t).remainder_(1001))
    elif kind == 5:
        source = choose.choice(pairs)
        elements = min(part[0].numel(), source[0].numel())
        for target, given in zip(part, source, strict=True):
            if target.is_contiguous():
                target.view(-1)[:elements].copy_(given.reshape(-1)[:elements])
    elif kind == 6:
        both(part, lambda t: t.zero_())
    else:
        both(part, lambda t: t[t > number].sum() and t.sub_(1))


def follow(pair):
    part = view(pair) if choose.random() < 0.5 else pair
    functions = [
        lambda t: t.clone(),
        lambda t: t.cumsum(0) % 1009,
        lambda t: (t > 3).long(),
        lambda t: t.reshape(-1)[t.reshape(-1) % 2 == 0],
        lambda t: t.sort(0).values,
        lambda t: t.contiguous() * 2 - t,
        lambda t: torch.cat([t.reshape(-1), t.reshape(-1)[:3]]),
        lambda t: t.sum(0, keepdim=True).expand(t.shape) % 77,
        lambda t: torch.unique(t),
        lambda t: t.double().div(4).to(torch.int64),
        lambda t: t.int().long(),
    ]
    made = both(part, choose.choice(functions))
    return made if made[0].numel() else pair


def compare(pair, step):
    if not torch.equal(pair[0].cpu(), pair[1]):
        wrong.append(f"step {step}: {tuple(pair[1].shape)}")


for step in range(steps):
    action = choose.random()
    if len(pairs) < 4 or action < 0.1:
        pairs.append(fresh())
    elif action < 0.5:
        write(choose.choice(pairs))
    elif action < 0.75:
        made = follow(choose.choice(pairs))
        if made[0].dim() > 0:
            pairs.append(made)
    elif action < 0.9:
        pairs.pop(choose.randrange(len(pairs)))
    else:
        compare(choose.choice(pairs), step)
    if len(pairs) > 14:
        pairs.pop(choose.randrange(len(pairs)))
for pair in pairs:
    compare(pair, steps)
pairs.clear()
pair = made = None
torch.cuda.synchronize()
torch.cuda.empty_cache()
counts = _values.counts()
print(json.dumps({"wrong": wrong[:10], "unknown": len(sim.uncomputed_reads()),
                  "left": [counts["waiting"], counts["values"], counts["bytes"]],
                  "computed": counts["computed"]}))  # fmt: skip
