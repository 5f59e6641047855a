"""Operators on large known tensors of the simulated GPU, compared with the host.

Prints the names of operators with other values, and how many places read uncomputed values.
"""

import json
import sys

import torch
import torch.nn.functional as F

from ferro_alloc import sim

ELEMENTS = int(sys.argv[1])
ROWS = ELEMENTS // 100
generator = torch.Generator().manual_seed(0)
numbers = torch.randint(-1000, 1000, (ELEMENTS,), generator=generator)
small = torch.randint(0, 50, (ELEMENTS,), generator=generator)
truths = torch.randint(0, 2, (ELEMENTS,), generator=generator, dtype=torch.bool)
order = torch.randperm(ELEMENTS, generator=generator)
masks = torch.randint(0, 2, (4, ROWS), generator=generator)
fractions = torch.rand(ELEMENTS, generator=generator)


def drawn(device):
    """Random numbers on the device, and the same numbers on the host."""
    torch.cuda.manual_seed(5)
    values = torch.rand(ELEMENTS, device="cuda")
    whole = torch.randint(0, 1000, (ELEMENTS,), device="cuda")
    return values.to(device), whole.to(device)


def unique_draws(device):
    return torch.unique(drawn(device)[1])


def kept_draws(device):
    return numbers.to(device)[drawn(device)[0] < 0.9]


def written(device):
    table = numbers.to(device, copy=True).view(-1, 100)
    table[:, 3] = 7
    table[5] = 1
    table[:, 10:20] += table[:, 20:30]
    table[truths.to(device).view(-1, 100)] = 0
    table.t()[50:60].mul_(2)
    return table


def accumulated(device):
    sums = torch.zeros(50, dtype=torch.long, device=device)
    sums.index_add_(0, small.to(device), numbers.to(device))
    counts = torch.zeros(50, dtype=torch.long, device=device)
    counts.scatter_add_(0, small.to(device), torch.ones(ELEMENTS, dtype=torch.long, device=device))
    return torch.cat([sums, counts])


def pinned(device):
    staged = numbers.pin_memory().to(device, non_blocking=True)
    copied = staged.clone()
    staged.zero_()
    return copied + staged


CASES = {
    "fills": lambda d: torch.ones(ELEMENTS, dtype=torch.long, device=d).sum(),
    "zeros": lambda d: torch.zeros(ELEMENTS, dtype=torch.int32, device=d).add_(1).sum(),
    "full": lambda d: torch.full((ELEMENTS,), 7, device=d).sum(),
    "uploads": lambda d: torch.ones(2, ELEMENTS // 2, dtype=torch.long).to(d).sum(-1),
    "ranges": lambda d: torch.arange(ELEMENTS, device=d).max(),
    "uploaded_ranges": lambda d: torch.arange(ELEMENTS).to(d).max(),
    "truths": lambda d: torch.ones(ELEMENTS, dtype=torch.bool, device=d).all(),
    "comparisons": lambda d: ((numbers.to(d) > 3) & (fractions.to(d) < 0.5)).count_nonzero(),
    "casts": lambda d: fractions.to(d).mul(100).to(torch.uint8).long().sum(),
    "arithmetic": lambda d: (numbers.to(d) * 3 - 1) // 2 % 7,
    "bitwise": lambda d: numbers.to(d) ^ (small.to(d) << 2),
    "reductions": lambda d: torch.stack([numbers.to(d).sum(), numbers.to(d).amin()]),
    "rows": lambda d: numbers.to(d).view(-1, 100).amax(1),
    "positions": lambda d: fractions.to(d).view(-1, 100).argmax(1),
    "sorts": lambda d: numbers.to(d).sort().values,
    "order": lambda d: order.to(d).argsort(),
    "topk": lambda d: order.to(d).topk(100).values,
    "mode": lambda d: torch.stack([*small.to(d).mode()]),
    "mode_rows": lambda d: torch.stack([*small.to(d).view(3, -1).mode(1)]),
    "mode_columns": lambda d: torch.stack([*small.to(d).view(-1, 3).mode(0)]),
    "mode_types": lambda d: torch.stack(
        [small.to(d, t).mode().values.long() for t in (torch.half, torch.uint8, torch.double)]
    ),
    "mode_truths": lambda d: truths.to(d).mode().values,
    "scans": lambda d: numbers.to(d).cumsum(0),
    "maxima": lambda d: numbers.to(d).cummax(0).values,
    "unique": lambda d: torch.unique(numbers.to(d)),
    "unique_counts": lambda d: torch.unique(small.to(d), return_counts=True)[1],
    "unique_draws": unique_draws,
    "kept_draws": kept_draws,
    "nonzero": lambda d: truths.to(d).nonzero(),
    "masks": lambda d: numbers.to(d)[truths.to(d)],
    "masked_select": lambda d: numbers.to(d).masked_select(truths.to(d)),
    "bincount": lambda d: torch.bincount(small.to(d)),
    "gather": lambda d: numbers.to(d).gather(0, order.to(d)),
    "scatter": lambda d: small.to(d).clone().scatter_(0, order.to(d), numbers.to(d)),
    "indices": lambda d: numbers.to(d)[order.to(d)],
    "accumulated": accumulated,
    "where": lambda d: torch.where(truths.to(d), numbers.to(d), 0),
    "expand": lambda d: masks.to(d)[:, :, None].expand(4, ROWS, 33).sum(),
    "repeat": lambda d: torch.repeat_interleave(small.to(d)[:ROWS]),
    "triangles": lambda d: torch.ones(ROWS, 100, dtype=torch.bool, device=d).tril().sum(),
    "strides": lambda d: numbers.to(d).view(-1, 100).t()[::3].contiguous(),
    "columns": lambda d: numbers.to(d).view(-1, 100)[:, 7].clone(),
    "written": written,
    "pinned": pinned,
    "concatenated": lambda d: torch.cat([numbers.to(d), small.to(d), numbers.to(d)[:7]]),
    "embedding": lambda d: F.embedding(small.to(d)[:ROWS], order[:5000].view(50, 100).to(d)),
    "grids": lambda d: F.grid_sample(
        fractions.to(d).view(1, 1, 10, 10, -1),
        fractions[: ELEMENTS // 3 * 3].to(d).view(1, 1, 1, -1, 3),
        align_corners=True,
    ),
    "equal": lambda d: torch.tensor(torch.equal(numbers.to(d), numbers.to(d) + 0)),
    "searchsorted": lambda d: torch.searchsorted(torch.arange(1000, device=d), numbers.to(d)),
    "isin": lambda d: torch.isin(numbers.to(d), torch.arange(10, device=d)),
}  # fmt: skip
chosen = sys.argv[2:] or CASES
wrong = [name for name in chosen if not torch.equal(CASES[name]("cuda").cpu(), CASES[name]("cpu"))]
print(json.dumps({"cases": len(CASES), "wrong": wrong, "unknown": len(sim.uncomputed_reads())}))
