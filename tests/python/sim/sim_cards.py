"""Calls CUB and operators built on it, which fail first where torch has no binary for a card."""

import json

import torch
import torch.nn.functional as F

keys = torch.zeros(100_000, device="cuda")
weight = torch.zeros(100, 16, device="cuda", requires_grad=True)
index = torch.zeros(100_000, dtype=torch.long, device="cuda")
outcomes = {}
for name, function in {
    "ones": lambda: torch.ones(10, device="cuda"),
    "sort": keys.sort,
    "cumsum": lambda: keys.cumsum(0),
    "embedding": lambda: F.embedding(index, weight).sum().backward(),
    "nonzero": keys.nonzero,
    "unique": keys.unique,
    "mask": lambda: keys[keys > 0],
}.items():
    try:
        function()
        torch.cuda.synchronize()
        outcomes[name] = "ran"
    except RuntimeError as error:
        outcomes[name] = str(error).splitlines()[0]
print(json.dumps(outcomes))
