"""Operators on lists whose tensors are not equally certain, compared with the host.

Prints the cases with other values than the host's, and the known ones that do not say so.
"""

import json
import sys

import torch

from ferro_alloc import sim

large = torch.randn(1000, 1000, device="cuda") @ torch.randn(1000, 1000, device="cuda")
numbers = torch.arange(1.0, 4.0)


def beside(known, function, others=1):
    """What a function of lists makes of known tensors that lie between unknown ones."""

    def run(device):
        unknown = [large.clone() if device == "cuda" else torch.zeros(2) for _ in range(others)]
        tensors = [*unknown, *(tensor.to(device, copy=True) for tensor in known), *unknown[:1]]
        result = function(tensors)
        return [*(tensors if result is None else result)][others:-1]

    return run


def in_place(function):
    def run(tensors):
        function(tensors)

    return run


def copied(tensors):
    targets = [torch.empty_like(tensor) for tensor in tensors]
    torch._foreach_copy_(targets, tensors)
    return targets


def converted(tensors):
    targets = [torch.empty_like(tensor, dtype=torch.float64) for tensor in tensors]
    torch._foreach_copy_(targets, tensors)
    return targets


def weighted(tensors):
    return torch._foreach_lerp(tensors, [tensor * 3 for tensor in tensors], 0.25)


def in_columns(tensors):
    whole = torch.zeros(3, 4, device=tensors[0].device)
    whole[:, 1] = tensors[1]
    torch._foreach_add_([tensors[0], whole[:, 1], tensors[2]], 1)
    return [tensors[0], whole, tensors[2]]


CASES = {
    "add_": beside([numbers, numbers * 2], in_place(lambda t: torch._foreach_add_(t, 1))),
    "many": beside([numbers] * 3, in_place(lambda t: torch._foreach_mul_(t, 2)), 60),
    "scalars": beside([numbers], lambda t: torch._foreach_mul(t, [2.0] * len(t))),
    "one_tensor": beside(
        [numbers], lambda t: torch._foreach_mul(t, torch.tensor(2.0, device=t[0].device))
    ),
    "copied": beside([numbers, numbers.long()], copied),
    "converted": beside([numbers, numbers.long()], converted),
    "weighted": beside([numbers], weighted),
    "in_columns": beside([numbers], in_columns),
    "norm": beside([numbers], torch._foreach_norm),
    "max": beside([numbers], torch._foreach_max),
    "empty": beside([torch.empty(0), numbers], lambda t: torch._foreach_add(t, 1)),
}


def reads():
    return sum(read.count for read in sim.uncomputed_reads())


wrong, unsure, silent = [], [], []
for name, case in CASES.items():
    before = reads()
    for there, here in zip(case("cuda"), case("cpu"), strict=True):
        if not torch.equal(there.cpu(), here):
            wrong.append(name)
    if reads() != before:
        unsure.append(name)

unknown, known = large.clone(), numbers.cuda()
torch._foreach_add_([unknown, known], 1)
torch._foreach_add_([unknown, known], [known.sum(), large[0, 0]])
for name, tensor in (("unknown", unknown), ("known plus unknown", known)):
    before = reads()
    tensor.cpu()
    if reads() == before:
        silent.append(name)
print(json.dumps({"wrong": wrong, "unsure": unsure, "silent": silent}))
sys.stdout.flush()
