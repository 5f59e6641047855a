"""Routers of experts whose logits are not computed: what follows from the drawn choices.

Prints for each case the rows of each expert and what the program learned from uncomputed values.
"""

import json
import sys

import torch
import torch.nn.functional as F

from ferro_alloc import sim

EXPERTS = 8
ROWS, chosen = int(sys.argv[1]), sys.argv[2:]
# Products of this size are not computed.
WIDTH = 400_000 // ROWS + 1
x = torch.randn(ROWS, WIDTH, device="cuda")


def route():
    return (x @ torch.randn(WIDTH, EXPERTS, device="cuda")).softmax(-1)


def two():
    return route().topk(2, -1).indices


def one_hot():
    return torch.zeros(ROWS, EXPERTS, dtype=torch.long, device="cuda").scatter(1, two(), 1)


def rows_of(indices):
    return [(indices == expert).nonzero().shape[0] for expert in range(EXPERTS)]


def topk():
    return rows_of(two())


def topk_of_columns():
    return rows_of(route().t().topk(2, 0).indices)


def argmax():
    choice = route().argmax(-1)
    return [x[choice == expert].shape[0] for expert in range(EXPERTS)]


def multinomial():
    return rows_of(torch.multinomial(route(), 2))


def repeated_multinomial():
    drawn = torch.multinomial(route(), 2, replacement=True)
    assert not torch.equal(drawn[:, 0], drawn[:, 1])
    return rows_of(drawn)


def sorted_assignments():
    order = two().flatten().sort()
    counts = torch.bincount(order.values, minlength=EXPERTS).tolist()
    parts = x[order.indices // 2].split(counts)
    inverse = order.indices.argsort()
    assert torch.equal(order.indices[inverse], torch.arange(2 * ROWS, device="cuda"))
    return [len(part) for part in parts]


def rows_in_order_of_their_scores():
    """Expert choice: each expert takes its best rows."""
    best = route().sort(dim=0, descending=True).indices[: ROWS // 4]
    return [torch.unique(best[:, expert]).shape[0] for expert in range(EXPERTS)]


def scattered_one_hot():
    places = (one_hot() == 1).nonzero()
    return torch.bincount(places[:, 1], minlength=EXPERTS).tolist()


def one_hot_of_torch():
    mask = F.one_hot(two(), EXPERTS).permute(2, 1, 0)
    return [torch.where(mask[expert])[1].shape[0] for expert in range(EXPERTS)]


def counts():
    found, sizes = torch.unique(two(), return_counts=True)
    sums = torch.zeros(EXPERTS, dtype=torch.long, device="cuda")
    return sums.index_add_(0, found, sizes).cpu().tolist()


def capacity():
    hot = one_hot()
    before = hot.cumsum(0) * hot
    kept = (before > 0) & (before <= ROWS // EXPERTS)
    return [kept[:, expert].nonzero().shape[0] for expert in range(EXPERTS)]


def written_columns():
    indices = two()
    mask = torch.zeros(ROWS, 2, dtype=torch.bool, device="cuda")
    for expert in range(2):
        mask[:, expert] = (indices == expert).any(1)
    return [mask[:, expert].nonzero().shape[0] for expert in range(2)]


def copied():
    indices = torch.empty(2 * ROWS, 2, dtype=torch.long, device="cuda")
    indices[:ROWS].copy_(two())
    indices[ROWS:].copy_(torch.full((ROWS, 2), EXPERTS, device="cuda"))
    return rows_of(indices)


def mixed():
    probabilities = route()
    choice = probabilities.argmax(-1)
    return [x[(choice == e) & (probabilities[:, e] > 0.5)].shape[0] for e in range(EXPERTS)]


def mixed_in_place():
    choice = route().argmax(-1)
    choice[route()[:, 0] > 0.5] = 0
    return rows_of(choice)


def positions_in_a_mask():
    return [(route() > 0.5).long().argmax(-1).sum().item()]


def unwritten():
    slots = torch.empty(ROWS, dtype=torch.long, device="cuda")
    slots[: ROWS // 2] = route().argmax(-1)[: ROWS // 2]
    return rows_of(slots)


def random_masks():
    unknown = route()
    return [
        x[torch.rand_like(unknown[:, 0]) < 0.5].shape[0],
        torch.empty_like(unknown[:, 0]).bernoulli_(0.5).bool().nonzero().shape[0],
        torch.bernoulli(torch.full((ROWS,), 0.5, device="cuda")).nonzero().shape[0],
        (torch.randint_like(unknown[:, 0], 2) == 1).nonzero().shape[0],
        (torch.randn_like(unknown[:, 0]) > 0).nonzero().shape[0],
        F.dropout(torch.ones(ROWS, device="cuda")).nonzero().shape[0],
    ]


CASES = (
    topk,
    topk_of_columns,
    argmax,
    multinomial,
    repeated_multinomial,
    sorted_assignments,
    rows_in_order_of_their_scores,
    scattered_one_hot,
    one_hot_of_torch,
    counts,
    capacity,
    written_columns,
    copied,
    mixed,
    mixed_in_place,
    positions_in_a_mask,
    unwritten,
    random_masks,
)
found = {}
for case in CASES:
    if chosen and case.__name__ not in chosen:
        continue
    before = {(read.place, read.operator): read.count for read in sim.uncomputed_reads()}
    sizes = case()
    learned = {
        read.learned
        for read in sim.uncomputed_reads()
        if read.count != before.get((read.place, read.operator))
    }
    found[case.__name__] = {"rows": sizes, "learned": sorted(learned)}
print(json.dumps(found))
