"""Choices from rows of a vocabulary in which known masks set numbers to minus infinity.

Prints the choices that are low, or differ from those of other operators.
"""

import json
import torch

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
x[:, :] = -float("inf")
print(json.dumps([wrong, len(x.topk(4).indices[0].unique())]))
