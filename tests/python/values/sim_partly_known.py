"""Operators on tensors of which some elements are unknown, compared with the host.

On the host the unknown elements have one number, and then another: the elements of a result that do
not change may be known. Prints the results with other values (`wrong`), with known elements that
count as unknown (`lost`), and with unknown elements that count as known (`silent`).
"""

import json
import sys
import warnings

import torch
import torch.nn.functional as F

from ferro_alloc import sim

warnings.simplefilter("ignore")
large = torch.randn(700, 700, device="cuda")
large = large @ large
known = torch.arange(10, 50).view(8, 5)
rows = torch.tensor([7, 0, 3])
places = torch.tensor([[0, 4, 2], [7, 1, 5]])
odd = torch.arange(5) % 2 == 1


def partly(device, filler, dtype=torch.int64):
    """The last rows and a column are unknown: on the host, they are filled."""
    made = known.to(device, dtype)
    made = made.clone()
    for part in (made[5:], made[:, 2]):
        part.copy_(unknown(device, filler, part.shape))
    return made


def unknown(device, filler, shape, dtype=torch.int64):
    if device == "cpu":
        return torch.full(shape, filler, dtype=dtype)
    return large.view(-1)[: torch.Size(shape).numel()].view(shape).to(dtype)


def written(x, d, u):
    x[rows.to(d)] = known[:3].to(d)
    x[known.to(d) % 7 == 0] = 3
    x.index_copy_(1, torch.tensor([1], device=d), u((8, 1)))
    x.scatter_(0, places[:, :2].to(d), u((2, 2)))
    x.index_fill_(0, torch.tensor([5], device=d), 9)
    x.masked_fill_(odd.to(d), 4)[2:4, 1:3].add_(x[4:6, 1:3])
    return x


def padded_in_place(x, d, u):
    return F.pad(x.view(1, 1, 8, 5).float(), (2, 1, 1, 3), mode="circular").int()


def infinities(x, d, u):
    # Where the host's numbers are finite, those on the device are not: they are the logarithms of
    # what happens to be there.
    zeros = torch.zeros(3, dtype=torch.double, device=d)
    y = torch.cat([zeros, -x[5].double()]).log()
    z = torch.cat([zeros / zeros, y[3:]])
    return torch.cat([y.isinf(), y == -torch.inf, y.isfinite(), z.isnan(), z != z])


def unset_quantized(device):
    """Memory of a known tensor, which new ones get without contents."""
    numbers = torch.arange(64.0, device=device)
    scales, points = torch.ones(64, device=device), torch.zeros(64, device=device).long()
    q = torch.quantize_per_tensor(numbers, 0.5, 1, torch.quint8)
    for make in (
        lambda: torch.empty_like(q),
        lambda: q.new_empty(64),
        lambda: torch._empty_affine_quantized(
            (64,), scale=0.5, zero_point=1, dtype=torch.quint8, device=device
        ),
        lambda: torch._empty_per_channel_affine_quantized(
            (64,), scales=scales, zero_points=points, axis=0, dtype=torch.quint8, device=device
        ),
    ):
        old = torch.full((64,), 7, dtype=torch.uint8, device=device)
        del old
        yield make().int_repr()


CASES = {
    "infinities": infinities,
    "cat": lambda x, d, u: torch.cat([x, known.to(d), x.int(), u((3, 5))]),
    "cat columns": lambda x, d, u: torch.cat([known.to(d), u((8, 1)), x], 1),
    "long cat": lambda x, d, u: torch.cat([x[0], u((2,)), known[0].to(d)] * 15),
    "stack": lambda x, d, u: torch.stack([x[3:7], u((4, 5)), known[:4].to(d)], 2),
    "cat into": lambda x, d, u: torch.cat(
        [x, u((1, 5))], out=torch.empty(9, 5, dtype=torch.long, device=d)
    ),
    "integers": lambda x, d, u: x.int().to(torch.uint8),
    "numbers": lambda x, d, u: x.float().bfloat16().double(),
    "arithmetic": lambda x, d, u: (x * 3 - known.to(d)) * 2 + x[0],
    "in place": lambda x, d, u: x.add_(known.to(d)).mul_(2),
    "compared in place": lambda x, d, u: x.ne_(-1),
    "divisions": lambda x, d, u: torch.cat([(x * 4) // 4, (5 - x * 3).floor_divide_(3)]),
    "comparisons": lambda x, d, u: (x == -1).logical_not() ^ odd.to(d),
    "transposed": lambda x, d, u: x.t().contiguous(),
    "view": lambda x, d, u: x[1:, 1:4].contiguous() + 1,
    "gaps": lambda x, d, u: torch.zeros(16, 9, dtype=torch.long, device=d)[::2, ::2].copy_(x),
    "copied": lambda x, d, u: torch.empty_like(x.t()).copy_(x.t()).clone(),
    "expanded": lambda x, d, u: x[:, None].expand(8, 3, 5).reshape(24, 5),
    "index_select": lambda x, d, u: x.index_select(0, rows.to(d)),
    "embedding": lambda x, d, u: F.embedding(places.to(d), x),
    "rows": lambda x, d, u: x[rows.to(d)],
    "two indices": lambda x, d, u: x[rows.to(d), torch.tensor([2, 1, 0], device=d)],
    "mask": lambda x, d, u: x[known.to(d) % 3 == 0],
    "gather": lambda x, d, u: x.gather(0, places.to(d)),
    "unsure gather": lambda x, d, u: known.to(d).gather(0, x.clamp(-2, 7) + 2 - 2 * (x > 0).long()),
    "take": lambda x, d, u: x.take(places.to(d) * 5),
    "where": lambda x, d, u: torch.where(odd.to(d), x, known.to(d)),
    "unknown where": lambda x, d, u: torch.where(odd.to(d), u((8, 5)), known.to(d)),
    "where not": lambda x, d, u: torch.where(odd.to(d), x, 7),
    "unsure where": lambda x, d, u: torch.where(x > -2, known.to(d), -known.to(d)),
    "masked_fill": lambda x, d, u: x.masked_fill(odd.to(d), 5),
    "roll": lambda x, d, u: x.roll((1, 2), (0, 1)),
    "flip": lambda x, d, u: x.flip(0, 1),
    "repeat": lambda x, d, u: x.repeat(2, 3),
    "repeat_interleave": lambda x, d, u: x.repeat_interleave(2, 0),
    "pad": lambda x, d, u: F.pad(x, (1, 2, 3, 4), value=6),
    "pad reflected": lambda x, d, u: F.pad(x[None].double(), (1, 2), mode="reflect"),
    "pad replicated": lambda x, d, u: F.pad(x[None, None].double(), (1, 2, 0, 1), mode="replicate"),
    "pad around": padded_in_place,
    "tril": lambda x, d, u: x.tril(),
    "written": written,
    "scatter": lambda x, d, u: known.to(d).scatter(0, places.to(d), x),
    "slice_scatter": lambda x, d, u: known.to(d).slice_scatter(x[:, :2], 1, 3, 5),
    "conjugated": lambda x, d, u: torch.complex(x.double(), x.double()).conj().imag.contiguous(),
    "positive": lambda x, d, u: torch.cat([x.float().sigmoid(), known.float().to(d)]),
    "sums": lambda x, d, u: x.sum(1),
    "accumulated": lambda x, d, u: x.index_put((rows.to(d),), known[:3].to(d), accumulate=True),
}  # fmt: skip
# Only these have known elements that count as unknown: sums, and those of which the zeros matter.
LOSING = {"accumulated", "positive"}
found: dict[str, list[str]] = {"wrong": [], "lost": [], "silent": []}


def is_known(element):
    before = sum(read.count for read in sim.uncomputed_reads())
    value = element.cpu()
    return sum(read.count for read in sim.uncomputed_reads()) == before, value


for name, case in CASES.items():
    there = case(partly("cuda", 0), "cuda", lambda shape: unknown("cuda", 0, shape)).reshape(-1)
    expected, other = (
        case(partly("cpu", filler), "cpu", lambda shape, f=filler: unknown("cpu", f, shape))
        for filler in (-1, -2)
    )
    may_be_known = (expected == other).reshape(-1)
    read = [is_known(element) for element in there]
    sure = torch.tensor([known for known, _ in read])
    values = torch.stack([value for _, value in read])
    if (sure & ~may_be_known).any():
        found["silent"].append(name)
    if (may_be_known & ~sure).any() != (name in LOSING):
        found["lost"].append(name)
    if not torch.equal(values[sure], expected.reshape(-1)[sure]):
        found["wrong"].append(name)
for made in unset_quantized("cuda"):
    if is_known(made[0])[0]:
        found["silent"].append("unset quantized")
print(json.dumps({**found, "cases": len(CASES)}))
sys.stdout.flush()
