"""Choices from rows of a vocabulary in which known masks set numbers to minus infinity.

Prints the choices that are low, or differ from those of other operators.
"""

import json
import torch

from ferro_alloc import sim

ROWS, NUMBERS = 6, 9000
hidden = torch.randn(ROWS, 400_000, device="cuda")
wrong = []


def logits(dtype, along):
    found = (hidden @ torch.empty(400_000, NUMBERS, device="cuda")).to(dtype)
    return found if along else found.t().contiguous().t()


def masks(kind):
    places = torch.arange(NUMBERS, device="cuda")
    return {
        "few": places == 17,
        "slice": (places >= 5) & (places < 4000),
        "most": places % 1500 != 3,
        "gaps": places % 2 == 0,
    }[kind]


for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
    for along in (True, False):
        for kind in ("few", "slice", "most", "gaps"):
            low = masks(kind)
            x = logits(dtype, along)
            if kind == "slice":
                x[:, 5:4000] = -float("inf")
            elif kind == "gaps":
                x[:, ::2] = torch.finfo(dtype).min
            else:
                x = x.masked_fill(low, -float("inf"))
            low = low.cpu()
            order = x.sort(-1, descending=True).indices.cpu()
            top = x.topk(5, -1).indices.cpu()
            note = [str(dtype), along, kind]
            high = int((~low).sum())
            checks = {
                "sorted": bool(low[order[:, high:]].all()) and not low[order[:, :high]].any(),
                "whole": all(len(set(row)) == NUMBERS for row in order.tolist()),
                "topk": torch.equal(top, order[:, :5]),
                "argmax": torch.equal(x.argmax(-1).cpu(), order[:, 0]),
                "argmin": torch.equal(x.argmin(-1).cpu(), order[:, -1]),
                "smallest": torch.equal(
                    x.topk(3, -1, largest=False).indices.cpu(), order.flip(1)[:, :3]
                ),
                "kth": torch.equal(x.kthvalue(NUMBERS - 3, -1).indices.cpu(), order[:, 3]),
                "flat": not low[x.argmax().item() % NUMBERS],
                "differ": len(set(order[:, 0].tolist())) > 1,
            }
            if dtype is not torch.float16:
                chances = x.softmax(-1)
                checks["drawn"] = not low[torch.multinomial(chances, 6).cpu()].any()
                again = torch.multinomial(chances, 200, replacement=True).cpu()
                checks["again"] = not low[again].any() and len(again.unique()) >= min(high, 6)
            wrong += [[*note, name] for name, holds in checks.items() if not holds]
# By a known mask, the right number of them is infinite, also of magnitudes and opposites.
x = logits(torch.float32, True)[:, :900].masked_fill(masks("gaps")[:900], -float("inf"))
half = x.numel() // 2
infinite = {
    "isinf": x.isinf(),
    "isfinite": x.isfinite().logical_not(),
    "magnitude": x.abs() == float("inf"),
    "opposite": -x == float("inf"),
    "scaled": (x / 0.7).isinf(),
    "in place": x.clone().neg_().isinf(),
}
wrong += [[name, found.sum().item()] for name, found in infinite.items() if found.sum() != half]
known = sum(read.learned in ("integer", "size") for read in sim.uncomputed_reads()) == 0
# By an unknown one, no number is known to be finite.
few = x.masked_fill(x < x.mean(), -float("inf"))
for change in (torch.neg, torch.abs, torch.square, torch.relu, lambda y: y.sort(1).values):
    before = sum(read.count for read in sim.uncomputed_reads())
    change(few).isinf().sum().item()
    if sum(read.count for read in sim.uncomputed_reads()) == before:
        wrong.append(["unknown mask", getattr(change, "__name__", "sort")])
x[:, :] = -float("inf")
wrong += [] if known else [["known mask"]]
print(json.dumps([wrong, len(x.topk(4).indices[0].unique())]))
