"""Writes from and through conjugated and negated views of the simulated GPU.

Prints the cases in which bytes count as known that are not those of the host.
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


def added_to_conjugate(device):
    z = torch.zeros_like(waves, device=device)
    z.conj().add_(waves.to(device))
    return z


def added_to_negated(device):
    r = torch.ones(3, device=device)
    torch._neg_view(r).add_(2)
    return r


stale = []
for case in (copied_conjugate, added_to_conjugate, added_to_negated):
    reads = sum(read.count for read in sim.uncomputed_reads())
    found = case("cuda").cpu()
    is_known = sum(read.count for read in sim.uncomputed_reads()) == reads
    if is_known and not torch.equal(found, case("cpu").resolve_conj().resolve_neg()):
        stale.append(case.__name__)
print(json.dumps(stale))
sys.stdout.flush()
