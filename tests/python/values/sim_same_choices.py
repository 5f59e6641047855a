"""Choices from unknown numbers: of the same numbers, of masked ones, of graphs, and on other cards.

Prints what each case found as JSON, and what the program learned from uncomputed values.
"""

import json
import sys
import threading
from contextlib import nullcontext
from functools import partial

import torch
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from ferro_alloc import sim

WIDTH, ROWS, EXPERTS = 2048, 2048, 8
LOW = float("-inf")
NUMBERS = (torch.float16, torch.bfloat16, torch.float32)


def unknown(columns=ROWS, device="cuda"):
    product = torch.ones(WIDTH, WIDTH, device=device) @ torch.ones(WIDTH, ROWS, device=device)
    return product[:, :columns].clone()


def operators_agree():
    row = unknown()
    order = row.sort(1, descending=True).indices
    rising = row.sort(1).indices
    return {
        "argmax": torch.equal(row.argmax(1), row.argmax(1)),
        "kept": torch.equal(row.argmax(1, keepdim=True), order[:, :1]),
        "max": torch.equal(row.max(1).indices, order[:, 0]),
        "topk": torch.equal(row.topk(5).indices, order[:, :5]),
        "smallest": torch.equal(row.topk(5, largest=False).indices, rising[:, :5]),
        "rising": torch.equal(rising.flip(1), order),
        "argmin": torch.equal(row.argmin(1), order[:, -1]),
        "min": torch.equal(row.min(1).indices, order[:, -1]),
        "third": torch.equal(row.kthvalue(3).indices, rising[:, 2]),
        "median": torch.equal(row.median(1).indices, rising[:, (ROWS - 1) // 2]),
        "permutation": torch.equal(
            order.sort(1).values, torch.arange(ROWS, device="cuda").expand_as(order)
        ),
        "all": row.argmax().item() == row.flatten().topk(3).indices[0].item(),
        "after a read": row.argmax(1).sum().item() == (row.cpu(), row.argmax(1).sum().item())[1],
    }


def views_and_copies_agree():
    row = unknown()
    best = row.argmax(1)
    copied = torch.empty_like(row)
    copied.copy_(row)
    return {
        "rows": torch.equal(row[5:90].argmax(1), best[5:90]),
        "transposed": torch.equal(row.t().topk(2, 0).indices[0], best),
        "batched": torch.equal(row.view(8, -1, ROWS).argmax(-1).flatten(), best),
        "copied": torch.equal(copied.argmax(1), best),
    }


def chosen_after():
    """What is chosen from the results of operators on unknown numbers, and from a part of each."""
    x, other = unknown()[:64], unknown()[64:128] * 3
    known = torch.ones(64, ROWS, device="cuda")
    half = torch.arange(ROWS, device="cuda") >= ROWS // 2
    low = x.masked_fill(half, LOW)
    weights = unknown()
    copied = torch.empty(64, ROWS, dtype=torch.float16, device="cuda").copy_(x)
    pieces = torch.empty_like(x)
    pieces[:, : ROWS // 2] = x[:, : ROWS // 2]
    pieces[:, ROWS // 2 :] = other[:, ROWS // 2 :]
    results = {
        "add": x + other,
        "add a number": x + 2,
        "sub": x - other,
        "mul": x * other,
        "mul by known": x * known,
        "known by x": known * x,
        "mul by a low number": x * LOW,
        "of one": x * x,
        "div": x / other,
        "pow": x.pow(2),
        "maximum": x.maximum(other),
        "rsqrt": x.rsqrt(),
        "exp": x.exp(),
        "exp of low": low.exp(),
        "relu": x.relu(),
        "positive": x.exp() * known.relu(),
        "zeroes": x.exp() * (known - 1),
        "sigmoid": x.sigmoid(),
        "silu": torch.nn.functional.silu(x),
        "softmax": x.softmax(1),
        "sum": x.view(64, 64, -1).sum(-1),
        "mean": x.view(64, 64, -1).mean(-1),
        "small": x[:2, :16].exp(),
        "mm": x @ weights,
        "mm of known": known @ weights,
        "addmm": torch.addmm(x, other, weights),
        "addmm without x": torch.addmm(x, other, weights, beta=0),
        "cat": torch.cat([x, other], 1),
        "cat with known": torch.cat([x, known], 1),
        "where": torch.where(half, x, other),
        "gather": x.gather(1, half.long().expand(64, -1)),
        "transposed": x.t() + other.t(),
        "strided": x[:, ::2] * other[:, 1::2],
        "of low": low + other,
        "of pieces": pieces * other,
        "half": x.half(),
        "copied": copied,
        "conjugate": torch.view_as_complex(x.view(64, -1, 2)).conj().mul(2).real,
    }
    return {
        name: [
            result.argmax(1).tolist(),
            result[:, 1:].argmin(1).tolist(),
            result.isfinite().sum().item(),
            result.sign().argmax(1).tolist(),
        ]
        for name, result in results.items()
    }


def other_numbers_differ():
    row, other = unknown(), unknown() * 2
    best = row.argmax(1)
    before = best.clone()
    row += 1
    return {
        "overwritten": not torch.equal(row.argmax(1), before),
        "unchanged": torch.equal(best, before),
        "other": not torch.equal(other.argmax(1), before),
        "rows": best.unique().numel() > ROWS // 3,
        "sampled": not torch.equal(row.softmax(1).multinomial(1), row.softmax(1).multinomial(1)),
    }


def recomputed(saved=nullcontext):
    """A mixture of experts under a checkpoint."""
    x = torch.randn(ROWS, 64, device="cuda", requires_grad=True)
    gate = torch.nn.Sequential(torch.nn.Linear(64, WIDTH), torch.nn.Linear(WIDTH, EXPERTS)).cuda()
    experts = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(EXPERTS)).cuda()

    def mixture(x):
        weights, chosen = gate(torch.nn.functional.dropout(x)).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(experts):
            rows, place = torch.where(chosen == number)
            out = out.index_add(0, rows, expert(x[rows]) * weights[rows, place, None])
        return out

    for _ in range(2):
        with saved():
            inner = checkpoint(mixture, x, use_reentrant=False)
            y = checkpoint(mixture, inner, use_reentrant=False)
        y.sum().backward()
    return {"done": x.grad is not None}


def recomputed_from_the_host():
    return [recomputed(partial(save_on_cpu, pinned)) for pinned in (False, True)]


def other_cards_agree():
    # One card makes a choice more than the other.
    unknown().argmax(1)
    every = [unknown(device=f"cuda:{number}").topk(2).indices.tolist() for number in range(2)]
    return {"equal": every[0] == every[1]}


def chosen(logits):
    return (logits.topk(2).indices >= EXPERTS // 2).sum().item()


def overflown(kind):
    """Of masks with the lowest number of a type, as of rows and of padding."""
    half = torch.arange(EXPERTS, device="cuda") >= EXPERTS // 2
    lowest = torch.finfo(kind).min
    mask = torch.zeros(EXPERTS, dtype=kind, device="cuda").masked_fill(half, lowest)
    row, few = unknown(EXPERTS).to(kind), unknown(EXPERTS)[:1].to(kind)
    filled = row.masked_fill(half, lowest)
    in_place = filled.clone().add_(mask)
    torch.add(filled, mask, out=(out := torch.empty_like(filled)))
    return {
        "two masks": chosen(filled + mask),
        "in place": chosen(in_place),
        "out": chosen(out),
        "added": chosen(row + mask + mask),
        "few": chosen(few + mask + mask),
        "product": chosen(filled * 2),
        "quotient": chosen(filled / 0.5),
        "lists": chosen(torch._foreach_add([filled], [mask])[0]),
        "softmax": chosen((filled + mask).softmax(-1)),
        "converted": chosen(filled.half()),
        "low": chosen(row.masked_fill(half, -1e4 if kind == torch.half else -1e9).half()),
    }


def masked():
    half = torch.arange(EXPERTS, device="cuda") >= EXPERTS // 2
    added = torch.zeros(ROWS, EXPERTS, device="cuda").masked_fill(half, LOW)
    written = unknown(EXPERTS)
    written[:, EXPERTS // 2 :] = LOW
    few = unknown(EXPERTS)[:64]
    few[:, EXPERTS // 2 :] = LOW
    scattered = unknown(EXPERTS).scatter(
        1, torch.arange(4, 8, device="cuda").expand(ROWS, 4), torch.finfo(torch.float32).min
    )
    filled = unknown(EXPERTS).masked_fill(half, LOW)
    return {
        "written": chosen(written),
        "few": chosen(few),
        "filled": chosen(filled),
        "half precision": chosen(unknown(EXPERTS).bfloat16().masked_fill(half, -1e4)),
        "converted": chosen(filled.bfloat16().float()),
        "added": chosen(unknown(EXPERTS) + added),
        "where": chosen(torch.where(half, LOW, unknown(EXPERTS))),
        "scattered": chosen(scattered),
        "softmax": chosen(filled.softmax(-1)),
        "sampled": (filled.softmax(-1).multinomial(2) >= EXPERTS // 2).sum().item(),
        "argmax": (filled.argmax(1) >= EXPERTS // 2).sum().item(),
        "lowest": (filled.argmin(1) < EXPERTS // 2).sum().item(),
        "zeros": chosen(unknown(EXPERTS).sigmoid().masked_fill(half, 0.0)),
        "product": chosen(unknown(EXPERTS).sigmoid() * ~half),
        **{
            f"{name} of {kind}": count
            for kind in NUMBERS
            for name, count in overflown(kind).items()
        },
        # The places that are left are drawn when there are too few others.
        "too few": (filled.topk(5).indices >= EXPERTS // 2).sum().item() - ROWS,
    }


def masked_evenly():
    half = torch.arange(EXPERTS, device="cuda") >= EXPERTS // 2
    best = unknown(EXPERTS).masked_fill(half, LOW).argmax(1)
    return torch.bincount(best, minlength=EXPERTS).tolist()


def groups():
    """Experts of the best groups only."""
    found = {}
    for name, filler in (("low", LOW), ("zero", 0.0)):
        scores = unknown(64).sigmoid()
        best = scores.view(-1, 8, 8).topk(2).values.sum(-1).topk(4).indices
        mask = torch.zeros(WIDTH, 8, device="cuda").scatter_(1, best, 1)
        mask = mask.unsqueeze(-1).expand(-1, 8, 8).reshape(-1, 64)
        places = scores.masked_fill(~mask.bool(), filler).topk(6).indices
        found[name] = (mask.gather(1, places) == 0).sum().item()
    return found


def known_infinities():
    row = unknown(EXPERTS).masked_fill(torch.arange(EXPERTS, device="cuda") >= 4, LOW)
    return (row != LOW).nonzero().shape[0]


def unknown_infinities():
    row = unknown()
    row = row.masked_fill(row < row.topk(50).values[:, -1:], LOW)
    return (row != LOW).nonzero().shape[0]


def drawn_infinities():
    row = unknown(EXPERTS)
    hot = torch.zeros_like(row).scatter(1, row.topk(2).indices, 1)
    return (row.masked_fill(hot == 0, LOW) != LOW).nonzero().shape[0]


def finite_after_attention():
    scores = unknown()
    scores = scores.masked_fill(scores > 1, LOW).softmax(-1)
    return torch.isfinite(scores @ scores).all().item()


def other_thread_reads():
    drawn = unknown().argmax(1)
    end = threading.Event()
    ready = threading.Event()

    def read():
        while not end.is_set():
            drawn[:5].cpu()  # the other thread's line
            ready.set()

    thread = threading.Thread(target=read)
    thread.start()
    ready.wait()
    known = torch.arange(5, device="cuda")
    for _ in range(1000):
        known.sum().item()
    end.set()
    thread.join()
    return len({read.place for read in sim.uncomputed_reads()})


def replayed():
    """A replay makes known what a program has written since the capture, and then unknown again."""
    out = torch.zeros(1024, dtype=torch.long, device="cuda")
    zeros = torch.ones(256, dtype=torch.long, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.add_(1)
        zeros.zero_()
    found = []
    for _ in range(2):
        out.zero_()
        before = len(sim.uncomputed_reads())
        out.sum().item()
        found.append(len(sim.uncomputed_reads()) - before)
        graph.replay()
        before = sum(read.count for read in sim.uncomputed_reads())
        out.sum().item()
        found.append(sum(read.count for read in sim.uncomputed_reads()) - before)
        assert zeros.sum().item() == 0
    return found


def replayed_choices():
    logits = torch.zeros(ROWS, WIDTH, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits.add_(1)
    best = []
    for _ in range(2):
        graph.replay()
        best.append(logits.argmax(1))
        assert torch.equal(best[-1], logits.argmax(1))
    return torch.equal(*best)


before = {(read.place, read.operator): read.count for read in sim.uncomputed_reads()}
result = globals()[sys.argv[1]]()
torch.cuda.synchronize()
learned = {
    read.learned
    for read in sim.uncomputed_reads()
    if read.count != before.get((read.place, read.operator))
}
print(json.dumps({"found": result, "learned": sorted(learned)}))
