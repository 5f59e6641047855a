"""Operators on small tensors of the simulated GPU, compared with the host.

Prints the names of operators with other values, and the warnings.
"""

import json
import sys

import torch
import torch.nn.functional as F

from ferro_alloc import sim

torch.manual_seed(0)
x, y = torch.randn(50, 7), torch.randn(7, 50)
words = torch.tensor([3, 1, 3, 2])
pairs = torch.tensor([[3, 1], [3, 1], [1, 2]])


def written(device):
    z = torch.zeros(50, 7, device=device)
    z[:, 3] = 5
    z[2] = 1
    z[torch.tensor([4, 9], device=device)] = 2
    z.t()[1:3].mul_(4)
    return z


def read_under_another_default(device):
    halves = torch.arange(6, device=device) / 2
    torch.set_default_dtype(torch.float64)
    try:
        return halves.cpu()
    finally:
        torch.set_default_dtype(torch.float32)


def copied_in_a_list(device):
    copies = [torch.zeros(4, device=device)]
    torch._foreach_copy_(copies, [torch.arange(4.0, device=device)])
    return copies[0]


def mixed_types(device):
    whole = words.to(device)
    scaled = (whole - 0.5) * 0.25 + (0.5 - whole)
    last = torch.tensor(7, dtype=torch.uint8, device=device) // 2
    return torch.cat([scaled, (scaled.norm() + 1e-6).view(1), last.view(1)])


def products_of_ignored(device):
    unset = torch.empty(50, 50, device=device)
    a, b = x.to(device), y.to(device)
    into = torch.empty_like(unset)
    torch.addmm(unset, a, b, beta=0, out=into)
    batch = torch.empty(2, 50, 50, device=device)
    results = [
        torch.addmm(unset, a, b, beta=0),
        torch.baddbmm(batch, a.expand(2, -1, -1), b.expand(2, -1, -1), beta=0.0).sum(0),
        torch.addbmm(unset, a[None], b[None], beta=0),
        torch.addr(unset, b[0], b[1], beta=0),
        torch.empty_like(unset).addmm_(a, b, beta=0),
        into,
    ]
    return torch.cat([*results, a.mv(b[:, 0])[None]])


def gradients_of_bags(device):
    weights = x.to(device).clone().requires_grad_()
    indices, starts = torch.arange(9, device=device) % 5, torch.tensor([0, 4, 4, 9], device=device)
    factors = torch.linspace(0, 1, 9, device=device).requires_grad_()
    for mode in ("sum", "mean", "max"):
        for last in (False, True):
            F.embedding_bag(
                indices, weights, starts, mode=mode, include_last_offset=last
            ).square().sum().backward()
    F.embedding_bag(
        indices, weights, starts, mode="sum", per_sample_weights=factors
    ).square().sum().backward()
    return torch.cat([weights.grad.flatten(), factors.grad])


def medians(device):
    # The host itself errs about an expanded tensor.
    rows = words.to(device)[:, None].expand(4, 3)
    rows = rows if device == "cuda" else rows.contiguous()
    return torch.cat([rows.median(1).values, rows.median(0).values])


def quantized(device):
    q = torch.quantize_per_tensor(x.to(device), 0.05, 3, torch.qint8)
    again = q.t().int_repr().t().float()
    return torch.cat([q.int_repr().float(), q.dequantize(), again, q.cpu().dequantize().to(device)])


def rectified(device):
    # The slopes of positive numbers are not drawn.
    drawn = F.rrelu(x.to(device).abs(), training=True)
    return torch.cat([drawn, F.rrelu(x.to(device)), F.rrelu(x.to(device), inplace=True)])


def grids(device):
    image, volume = x.to(device).view(1, 1, 14, 25), x.to(device).view(1, 2, 5, 5, 7)
    places = x[:48].to(device).tanh()
    plane, space = places.view(1, 12, 14, 2), places.view(1, 4, 4, 7, 3)
    moved = image.clone().requires_grad_()
    F.grid_sample(moved, plane, align_corners=True).square().sum().backward()
    sampled = [F.grid_sample(image, plane, align_corners=same) for same in (True, False)]
    sampled += [
        F.grid_sample(volume, space, mode, align_corners=True) for mode in ("bilinear", "nearest")
    ]
    return torch.cat([moved.grad.flatten(), *(each.flatten() for each in sampled)])


def unique_columns(device):
    columns = pairs.t().to(device)
    for find in (torch.unique, torch.unique_consecutive):
        for dim in (0, 1, -1):
            found = find(columns, dim=dim, return_inverse=True, return_counts=True)
            yield torch.cat([each.flatten() for each in found])


CASES = {
    "fills": lambda d: torch.full((3, 5), 7.5, device=d),
    "ranges": lambda d: torch.arange(3, 40, 3, device=d) + torch.linspace(0, 1, 13, device=d),
    "comparisons": lambda d: (x.to(d) > 0) & (x.to(d) < 1) | x.to(d).isnan(),
    "reductions": lambda d: torch.stack([x.to(d).sum(0), x.to(d).amax(0), x.to(d).norm(dim=0)]),
    "medians": medians,
    "gradients_of_bags": gradients_of_bags,
    "products_of_ignored": products_of_ignored,
    "quantized": quantized,
    "rectified": rectified,
    "grids": grids,
    "windows": lambda d: torch.stack(
        [torch.kaiser_window(50, device=d), torch.kaiser_window(50, False, beta=3.0, device=d)]
    ),
    "padded_around": lambda d: F.pad(x.to(d)[None, None], (2, 3, 1, 0), mode="circular"),
    "products": lambda d: x.to(d) @ y.to(d),
    "sorts": lambda d: torch.cat([x.to(d).sort(1).values, x.to(d).topk(3).values], 1),
    "positions": lambda d: torch.stack([x.to(d).argmax(0), x.to(d).min(0).indices]),
    "scans": lambda d: x.to(d).cumsum(1) + x.to(d).cummax(0).values,
    "masks": lambda d: x.to(d)[x.to(d) > 0.5],
    "masked_select": lambda d: x.to(d).masked_select(x.to(d) < 0),
    "nonzero": lambda d: (x.to(d) > 1).nonzero(),
    "unique": lambda d: torch.cat(torch.unique(words.to(d), return_inverse=True)),
    "unique_truth": lambda d: torch.unique((words > 0).to(d)),
    "unique_rows": lambda d: torch.unique(pairs.to(d), dim=0),
    "unique_consecutive": lambda d: torch.unique_consecutive(words.sort().values.to(d)),
    "unique_columns": lambda d: torch.cat(list(unique_columns(d))),
    "repeat_interleave": lambda d: torch.repeat_interleave(words.to(d)),
    "bincount": lambda d: torch.bincount(words.to(d)),
    "one_hot": lambda d: F.one_hot(words.to(d)),
    "views": lambda d: x.to(d)[:, ::2].t().contiguous() + 1,
    "writing": written,
    "conversions": lambda d: x.to(d, torch.float16).bfloat16().double(),
    "strided_upload": lambda d: x.t().to(d, torch.float64),
    "softmax": lambda d: x.to(d).softmax(-1).log(),
    "embedding": lambda d: F.embedding(words.to(d), x.to(d)),
    "foreach": lambda d: torch.stack(torch._foreach_mul([x.to(d), x.to(d) + 1], 3.0)),
    "certain_draws": lambda d: torch.multinomial(torch.tensor([0.0, 0.0, 1.0], device=d), 1),
    "copied_in_a_list": copied_in_a_list,
    "read_under_another_default": read_under_another_default,
    "mixed_types": mixed_types,
    "isin": lambda d: torch.isin(words.to(d), torch.arange(2, 300, device=d)),
    "empty": lambda d: torch.zeros(0, 4, device=d).sum(0),
}
wrong = []
for name, case in CASES.items():
    found = case("cuda")
    torch.cuda.synchronize()
    if not torch.allclose(found.cpu(), case("cpu"), rtol=1e-5, atol=1e-6):
        wrong.append(name)
if not torch.equal(x.cuda(), x.cuda()) or torch.equal(x.cuda(), x.cuda() + 1):
    wrong.append("equal")

# Random numbers depend on the device's seed, and do not change the host's generator.
host_state = torch.get_rng_state()
draws = []
for _ in range(2):
    torch.cuda.manual_seed(3)
    draws.append(torch.cat([torch.rand(100, device="cuda"), torch.rand(100, device="cuda")]).cpu())
kept = F.dropout(torch.ones(1000, device="cuda")).count_nonzero().item()
random = {
    "repeats": torch.equal(*draws),
    "differs": not torch.equal(draws[0][:100], draws[0][100:]),
    "mean": draws[0].mean().item(),
    "kept": kept,
    "permutation": torch.equal(torch.randperm(99, device="cuda").cpu().sort()[0], torch.arange(99)),
    "host": torch.equal(host_state, torch.get_rng_state()),
}
warned_before = sim.uncomputed_reads()

# Products of a million numbers are not computed, nor are results that depend on them.
large = torch.randn(1000, 1000, device="cuda") @ torch.randn(1000, 1000, device="cuda")
unknown = {
    "sum": large.sum().item(),
    "argmax": large.argmax(1).tolist(),
    "topk": large.topk(4).indices.tolist(),
    "copied": (large[0, :16] + 1).clone().cpu().sum().item(),
    "not_tried": (large[0, :40] + 1).clone().cpu().sum().item(),
}
reset = large.zero_().sum().item()
print(
    json.dumps(
        {
            "cases": len(CASES),
            "wrong": wrong,
            "random": random,
            "warned_before": len(warned_before),
            "unknown": unknown,
            "places": [(read.place, read.operator, read.count) for read in sim.uncomputed_reads()],
            "allocated": torch.cuda.max_memory_allocated(),
            "host_threads": torch.get_num_threads(),
        }
    )
)
sys.stdout.flush()
