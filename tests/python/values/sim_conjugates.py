"""Reads and writes of known data through conjugated and negated views of the simulated GPU.

Prints the cases with other values than the host's, and those that are not known.
"""

import json
import sys

import torch

from ferro_alloc import sim

waves = torch.tensor([1 + 2j, 3 - 4j])


def copied_conjugate(device):
    z = torch.zeros_like(waves, device=device)
    z.copy_(waves.to(device).conj())
    return z


def moved_and_conjugated(device):
    z = torch.zeros_like(waves, device=device)
    z.copy_(waves.conj())
    target = torch.zeros(2, 2, dtype=torch.complex128, device=device).conj()
    target.copy_(torch.stack([waves, waves.conj()]))
    host = torch.zeros_like(waves)
    host.copy_(waves.to(device).conj())
    return torch.cat([z, target.flatten(), host.to(device)])


def conjugated_in_place(device):
    z = torch.cat([waves.to(device), waves.to(device)])
    z[1:3].conj_physical_()
    return z


def added_to_conjugate(device):
    z = torch.zeros_like(waves, device=device)
    z.conj().add_(waves.to(device))
    return z


def added_to_negated(device):
    r = torch.ones(3, device=device)
    torch._neg_view(r).add_(2)
    return r


def converted(device):
    return waves.to(device).conj().to(torch.complex128)


def multiplied(device):
    z = waves.to(device)
    return torch.cat([z.conj() * z, z.conj().sum().view(1), (z[None].conj() @ z)])


def parts(device):
    z = waves.to(device).conj()
    return torch.cat([z.imag + 1, z.imag, z.real])


def written_with_gaps(device):
    z = waves.repeat(600).to(device)
    z.view(300, 4)[:, ::2].conj().add_(2 + 5j)
    z.view(300, 4).t()[1].conj().copy_(z[:300].clone())
    z.imag[::3].neg_()
    return z


# What an H200 holds after `copy_` from these views of host tensors to each type, at once and
# `non_blocking`. PyTorch itself reverses the sign where it copies the view before it sends it.
NEGATED = (
    (waves.conj().imag, torch.float32, ([2, -4], [2, -4])),
    (torch._neg_view(waves.imag.clone()), torch.float32, ([-2, 4], [-2, 4])),
    (torch._neg_view(waves.imag.clone()), torch.float64, ([2, -4], [-2, 4])),
    (torch._neg_view(waves.imag.clone()), torch.int32, ([2, -4], [-2, 4])),
)


def negated(device):
    if device == "cpu":
        return torch.tensor([expected for *_, expected in NEGATED])
    copies = [
        torch.zeros(2, dtype=kind, device=device).copy_(view, non_blocking=non_blocking)
        for view, kind, _ in NEGATED
        for non_blocking in (False, True)
    ]
    return torch.stack([copy.long() for copy in copies]).view(len(NEGATED), 2, 2)


CASES = (
    negated,
    copied_conjugate,
    moved_and_conjugated,
    conjugated_in_place,
    added_to_conjugate,
    added_to_negated,
    converted,
    multiplied,
    parts,
    written_with_gaps,
)
wrong, unknown = [], []
for case in CASES:
    reads = sum(read.count for read in sim.uncomputed_reads())
    if not torch.equal(case("cuda").cpu(), case("cpu").resolve_conj().resolve_neg()):
        wrong.append(case.__name__)
    if sum(read.count for read in sim.uncomputed_reads()) != reads:
        unknown.append(case.__name__)
print(json.dumps({"wrong": wrong, "unknown": unknown}))
sys.stdout.flush()
