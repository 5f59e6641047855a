"""Masks of unknown numbers, and the gradients of products of such.

Prints how many rows each mask selects, how many distinct elements unknown tensors have, and the
memory that gradients of known and unknown numbers request.
"""

import json

import torch

large = torch.randn(1000, 1000, device="cuda") @ torch.randn(1000, 1000, device="cuda")
x, y = large[0], large[1]
mask, other = x > y, y > x

MASKS = {
    "comparison": lambda: x > 0,
    "signbit": lambda: torch.signbit(x),
    "logical_and": lambda: torch.logical_and(x, y),
    "logical_or": lambda: torch.logical_or(x, y),
    "logical_xor": lambda: torch.logical_xor(x, y),
    "logical_not": lambda: torch.logical_not(x),
    "and": lambda: mask & other,
    "or": lambda: mask | other,
    "xor": lambda: mask ^ other,
    "not": lambda: ~mask,
    "of masks": lambda: mask.logical_and(other),
    "isclose": lambda: torch.isclose(x, y),
    "isin": lambda: torch.isin(x, y[:5]),
    "cast": lambda: x.bool(),
    "any": lambda: large[:2].any(0),
    "all": lambda: large[:2].all(0),
    "where": lambda: torch.where(mask, mask, other),
    "cat": lambda: torch.cat([mask[:500], other[:500]]),
    "cummax": lambda: mask.cummax(0).values,
}


def rows(made):
    return [made.nonzero().shape[0], x[made].shape[0], torch.masked_select(x, made).shape[0]]


LONG = 3_000_000
repeated = mask.repeat(LONG // 1000 + 1)
both = ~repeated[:LONG] & ~repeated[1 : LONG + 1]
octets = (x * 10).to(torch.uint8).repeat(2)
DISTINCT = {
    "mask": mask,
    "long mask": both,
    "one": mask[:1],
    "octets": octets,
    "numbers": x,
}
SLICES = {"rows of a mask": mask.view(500, 2), "rows of numbers": large[:50]}


def requested(function, numbers):
    """Bytes that the gradient of a function requests."""
    leaf = numbers.clone().requires_grad_()
    made = function(leaf).sum()
    before = torch.cuda.memory_stats()["allocated_bytes.all.allocated"]
    torch.autograd.grad(made, leaf)
    return torch.cuda.memory_stats()["allocated_bytes.all.allocated"] - before


PRODUCTS = {
    "prod": lambda t: t.prod(),
    "prod of rows": lambda t: t.view(10, -1).prod(1),
    "cumprod": lambda t: t.cumprod(0),
    "cumprod of rows": lambda t: t.view(10, -1).cumprod(1),
}
gradients = {
    f"{name} of {count}": [
        requested(function, numbers.flatten()[:count])
        for numbers in (torch.ones_like(large), large)
    ]
    for name, function in PRODUCTS.items()
    for count in (20, 2000, 200_000)
}

print(
    json.dumps(
        {
            "rows": {name: rows(make()) for name, make in MASKS.items()},
            "long": both.nonzero().shape[0],
            "distinct": {name: len(tensor.unique()) for name, tensor in DISTINCT.items()},
            "slices": {name: len(tensor.unique(dim=0)) for name, tensor in SLICES.items()},
            "gradients": gradients,
        }
    )
)
