"""Seeded PyTorch workloads whose memory varies from step to step.

Each is a function of its sizes and of a callback, which it calls after every step with the step's
number and the loss (or another scalar of the step, as a tensor on the device). It returns tensors
that depend on all computed values. Shapes depend only on random numbers of the host, so requests
are the same on every device, including the simulated GPU. With deterministic algorithms enabled
results repeat to the last bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.models.llama import Llama, ModelShape, rotate

SEED = 11
BF16 = torch.bfloat16
SMALL = ModelShape(vocabulary=1_000, width=128, layers=2, heads=2, hidden=256, longest=512)

StepCallback = Callable[[int, Tensor], None]


@dataclass(frozen=True)
class Workload:
    run: Callable[..., Sequence[Tensor]]
    smoke: Mapping[str, Any]
    """Sizes that take a second or two on the simulated GPU."""
    sizes: Mapping[str, Any] = field(default_factory=dict)
    """Sizes of a measurement that differ from the function's defaults."""


@contextmanager
def on_device(dtype: torch.dtype = BF16) -> Iterator[None]:
    """Modules created inside have seeded weights of this type on the device."""
    torch.manual_seed(SEED)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("cuda"):
            yield
    finally:
        torch.set_default_dtype(before)


def make_llama(shape: ModelShape) -> Llama:
    with on_device():
        return Llama(shape)


def lengths(
    steps: int, batch: tuple[int, int], length: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    rng = random.Random(SEED)
    for _ in range(steps):
        yield rng.randint(*batch), rng.randint(*length)


def make_tokens(batch: int, length: int, step: int, vocabulary: int) -> Tensor:
    generator = torch.Generator().manual_seed(SEED * 1_000_003 + step)
    return torch.randint(vocabulary, (batch, length), generator=generator)


def train_step(loss: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def full_varlen(
    on_step: StepCallback,
    *,
    steps: int = 40,
    shape: ModelShape = ModelShape(),  # noqa: B008  # frozen
    batch: tuple[int, int] = (1, 8),
    length: tuple[int, int] = (64, 1_500),
) -> Sequence[Tensor]:
    """All weights of a Llama-shaped model trained with AdamW on batches of every size."""
    model = make_llama(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step, (rows, columns) in enumerate(lengths(steps, batch, length)):
        tokens = make_tokens(rows, columns, step, shape.vocabulary).cuda()
        on_step(step, train_step(model.loss(tokens), optimizer))
    return list(model.parameters())


class LoraLinear(nn.Module):
    """A frozen linear layer with a trained correction of low rank."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(F.silu(self.down(x)))
        return out


class Recomputed(nn.Module):
    """Keeps only the input of a layer for the backward pass."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.layer, *inputs, use_reentrant=False, preserve_rng_state=False)
        return out


LORA_SHAPE = ModelShape(width=2048, layers=12, heads=16, hidden=5632)


def lora_recompute(
    on_step: StepCallback,
    *,
    steps: int = 30,
    shape: ModelShape = LORA_SHAPE,
    rank: int = 16,
    batch: tuple[int, int] = (1, 6),
    length: tuple[int, int] = (100, 2_000),
) -> Sequence[Tensor]:
    """Low-rank adapters of a frozen model, with activations computed twice."""
    with on_device():
        model = Llama(shape).requires_grad_(False)
        for index, layer in enumerate(model.layers):
            for part in (layer.get_submodule("attention"), layer.get_submodule("feed_forward")):
                for name, module in list(part.named_children()):
                    if isinstance(module, nn.Linear):
                        setattr(part, name, LoraLinear(module, rank))
            model.layers[index] = Recomputed(layer)
    adapters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=1e-4)
    for step, (rows, columns) in enumerate(lengths(steps, batch, length)):
        tokens = make_tokens(rows, columns, step, shape.vocabulary).cuda()
        on_step(step, train_step(model.loss(tokens), optimizer))
    return adapters


Cache = list[tuple[Tensor, Tensor]]


def decode(model: Llama, tokens: Tensor, cache: Cache) -> Tensor:
    """The next token of each row; `cache` grows by the keys and values of `tokens`."""
    done = cache[0][0].shape[2] if cache else 0
    rows, columns = tokens.shape
    cosine = model.get_buffer("cosine")[done : done + columns]
    sine = model.get_buffer("sine")[done : done + columns]
    x = model.embedding(tokens)
    for index, layer in enumerate(model.layers):
        attention = layer.get_submodule("attention")
        width = x.shape[-1]
        normed = layer.get_submodule("attention_norm")(x)
        heads = (rows, columns, attention.heads, width // attention.heads)
        parts = attention.qkv(normed).chunk(3, dim=-1)
        q, k, v = (part.view(heads).transpose(1, 2) for part in parts)
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        if done:
            k = torch.cat((cache[index][0], k), dim=2)
            v = torch.cat((cache[index][1], v), dim=2)
            cache[index] = (k, v)
        else:
            cache.append((k.contiguous(), v.contiguous()))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=done == 0)
        x = x + attention.out(mixed.transpose(1, 2).reshape(rows, columns, width))
        x = x + layer.get_submodule("feed_forward")(layer.get_submodule("feed_forward_norm")(x))
    logits = model.head(model.norm(x[:, -1:]))
    best: Tensor = logits.argmax(-1)
    return best


def continue_text(model: Llama, prompt: Tensor, new_tokens: int) -> Tensor:
    cache: Cache = []
    text = [prompt]
    with torch.no_grad():
        for _ in range(new_tokens):
            text.append(decode(model, text[-1], cache))
        return torch.cat(text, dim=1)


def generate(
    on_step: StepCallback,
    *,
    steps: int = 12,
    shape: ModelShape = ModelShape(),  # noqa: B008
    batch: tuple[int, int] = (4, 32),
    prompt: tuple[int, int] = (100, 1_200),
    new_tokens: int = 64,
) -> Sequence[Tensor]:
    """Decoding with a cache of keys and values that is copied into a longer one for each token."""
    model = make_llama(shape)
    text = torch.zeros((), device="cuda")
    for step, (rows, columns) in enumerate(lengths(steps, batch, prompt)):
        tokens = make_tokens(rows, columns, step, shape.vocabulary).cuda()
        text = continue_text(model, tokens, new_tokens)
        on_step(step, text[:, -1].float().mean())
    return [text]


def generate_train(
    on_step: StepCallback,
    *,
    steps: int = 12,
    shape: ModelShape = ModelShape(),  # noqa: B008
    batch: tuple[int, int] = (4, 16),
    prompt: tuple[int, int] = (50, 700),
    new_tokens: int = 32,
) -> Sequence[Tensor]:
    """Generates text and trains on it, in turns, as reinforcement learning does."""
    model = make_llama(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step, (rows, columns) in enumerate(lengths(steps, batch, prompt)):
        tokens = make_tokens(rows, columns, step, shape.vocabulary).cuda()
        text = continue_text(model, tokens, new_tokens)
        on_step(step, train_step(model.loss(text), optimizer))
    return list(model.parameters())


def convolution_block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def conv(
    on_step: StepCallback,
    *,
    steps: int = 40,
    channels: Sequence[int] = (64, 128, 256, 512),
    batch: tuple[int, int] = (4, 24),
    resolution: tuple[int, int] = (4, 14),
) -> Sequence[Tensor]:
    """A convolutional network on square images, `resolution` in units of 32 pixels."""
    widths = [3, *channels]
    with on_device(torch.float32):
        blocks = [convolution_block(a, b, 2) for a, b in pairwise(widths)]
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 100))
        model = nn.Sequential(*blocks, *head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step, (rows, units) in enumerate(lengths(steps, batch, resolution)):
        # Drawn on the device, which is faster than on the host.
        torch.manual_seed(step)
        images = torch.rand((rows, 3, 32 * units, 32 * units), device="cuda")
        labels = torch.randint(100, (rows,), device="cuda")
        on_step(step, train_step(F.cross_entropy(model(images), labels), optimizer))
    return list(model.parameters())


def conv_plain(on_step: StepCallback, **sizes: Any) -> Sequence[Tensor]:
    """`conv` with PyTorch's own convolutions."""
    with torch.backends.cudnn.flags(enabled=False):
        return conv(on_step, **sizes)


class Experts(nn.Module):
    """A mixture of feed-forward experts, each token served by two of them."""

    def __init__(self, width: int, hidden: int, count: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, count, bias=False)
        self.up = nn.ModuleList(nn.Linear(width, hidden, bias=False) for _ in range(count))
        self.down = nn.ModuleList(nn.Linear(hidden, width, bias=False) for _ in range(count))

    def forward(self, x: Tensor, routing: Sequence[Tensor]) -> Tensor:
        weights = self.gate(x).softmax(-1)
        out = torch.zeros_like(x)
        for expert, rows in enumerate(routing):
            mine = F.silu(self.up[expert](x[rows]))
            mine = self.down[expert](mine) * weights[rows, expert, None]
            out = out.index_add(0, rows, mine)
        return x + out


def route(tokens: int, experts: int, rng: random.Random) -> list[Tensor]:
    """The rows of each expert, chosen on the host instead of by a gate on the device. Some experts
    are more popular than others, and these differ from call to call."""
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    popularity = torch.rand(experts, generator=generator)
    scores = popularity + torch.rand((tokens, experts), generator=generator)
    chosen = scores.topk(2).indices
    return [(chosen == expert).any(1).nonzero()[:, 0] for expert in range(experts)]


@dataclass(frozen=True)
class Routing:
    """The number of tokens of a step and, for each layer, the rows of each expert."""

    tokens: int
    layers: Sequence[Sequence[Tensor]]


@cache
def route_all(steps: int, layers: int, experts: int, tokens: tuple[int, int]) -> Sequence[Routing]:
    """Once for all passes, because it takes the host longer than the rest of a step."""
    rng = random.Random(SEED)
    counts = [rng.randint(*tokens) for _ in range(steps)]
    return [Routing(n, [route(n, experts, rng) for _ in range(layers)]) for n in counts]


def moe(
    on_step: StepCallback,
    *,
    steps: int = 30,
    width: int = 1024,
    hidden: int = 2048,
    layers: int = 6,
    experts: int = 8,
    vocabulary: int = 4_000,
    tokens: tuple[int, int] = (1_000, 24_000),
) -> Sequence[Tensor]:
    """Layers of experts trained on batches of tokens of every size."""
    with on_device():
        model = nn.ModuleList(Experts(width, hidden, experts) for _ in range(layers))
        words = nn.Embedding(vocabulary, width)
    parameters = [*words.parameters(), *model.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    for step, routing in enumerate(route_all(steps, layers, experts, tokens)):
        x = words(make_tokens(1, routing.tokens, step, vocabulary)[0].cuda())
        for layer, experts_rows in zip(model, routing.layers, strict=True):
            x = layer(x, [rows.cuda() for rows in experts_rows])
        on_step(step, train_step(x.float().square().mean(), optimizer))
    return parameters


def offload(
    on_step: StepCallback,
    *,
    steps: int = 12,
    shape: ModelShape = ModelShape(layers=4),  # noqa: B008
    batch: tuple[int, int] = (1, 4),
    length: tuple[int, int] = (64, 800),
) -> Sequence[Tensor]:
    """Training whose saved activations wait in pinned host memory for the backward pass."""
    model = make_llama(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step, (rows, columns) in enumerate(lengths(steps, batch, length)):
        tokens = make_tokens(rows, columns, step, shape.vocabulary).cuda()
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = model.loss(tokens)
        on_step(step, train_step(loss, optimizer))
    return list(model.parameters())


def fsdp_like(
    on_step: StepCallback,
    *,
    steps: int = 60,
    width: int = 4096,
    layers: int = 12,
    shards: int = 4,
    rows: tuple[int, int] = (500, 8_000),
) -> Sequence[Tensor]:
    """Weights gathered on a side stream ahead of their use and freed right after it."""
    # All layers gather the same shards: how often a weight is gathered matters, not what it holds.
    part = (width // shards, width)
    with on_device():
        stored = [torch.randn(part) / width**0.5 for _ in range(shards)]
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    rng = random.Random(SEED)
    x = torch.zeros((), device="cuda")
    for step in range(steps):
        count = rng.randint(*rows)
        x = torch.ones((count, width), dtype=BF16, device="cuda") * (step + 1)
        for _ in range(layers):
            with torch.cuda.stream(side):
                weight = torch.cat(stored)
                gathered = side.record_event()
            main.wait_event(gathered)
            weight.record_stream(main)
            x = F.silu(x @ weight) + x
            del weight
        on_step(step, x.float().mean())
    return [x]


def quantise(weight: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Integers of 8 bits and, for each group of them along a row, a scale."""
    grouped = weight.view(-1, group)
    scale = grouped.abs().amax(1, keepdim=True) / 127
    return (grouped / scale).round().to(torch.int8), scale.to(BF16)


def quantised_load(
    on_step: StepCallback,
    *,
    steps: int = 32,
    layers: int = 24,
    width: int = 2048,
    matrices: tuple[int, int] = (8, 48),
    group: int = 128,
    rows: tuple[int, int] = (64, 4_096),
) -> Sequence[Tensor]:
    """Layers of every size that arrive in full precision, one per step, and stay as integers; the
    remaining steps compute with them."""
    stored: list[tuple[Tensor, Tensor]] = []
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    for step in range(layers):
        # Made on the device, which takes the memory of a copy from the host.
        full = torch.randn((rng.randint(*matrices), width, width), device="cuda") / width**0.5
        stored += [quantise(weight, group) for weight in full]
        del full
        on_step(step, stored[-1][1].float().mean())
    x = torch.zeros((), device="cuda")
    for step in range(layers, steps):
        x = torch.ones((rng.randint(*rows), width), dtype=BF16, device="cuda") * (step + 1)
        for values, scale in stored:
            x = F.silu(x @ (values * scale).view(width, width)) + x
        on_step(step, x.float().mean())
    return [x]


SMOKE_TEXT: Mapping[str, Any] = {"steps": 4, "shape": SMALL, "length": (16, 200)}
SMOKE_IMAGES: Mapping[str, Any] = {
    "steps": 3,
    "channels": (8, 16),
    "batch": (1, 4),
    "resolution": (1, 3),
}

WORKLOADS: Mapping[str, Workload] = {
    "full_varlen": Workload(full_varlen, smoke=SMOKE_TEXT),
    "lora_recompute": Workload(lora_recompute, smoke=SMOKE_TEXT),
    "generate": Workload(
        generate, smoke={"steps": 3, "shape": SMALL, "prompt": (10, 100), "new_tokens": 8}
    ),
    "generate_train": Workload(
        generate_train, smoke={"steps": 3, "shape": SMALL, "prompt": (10, 100), "new_tokens": 4}
    ),
    "conv": Workload(conv, smoke=SMOKE_IMAGES),
    "conv_plain": Workload(conv_plain, smoke=SMOKE_IMAGES),
    "moe": Workload(
        moe, smoke={"steps": 3, "width": 64, "hidden": 128, "layers": 2, "tokens": (100, 2_000)}
    ),
    "offload": Workload(offload, smoke=SMOKE_TEXT),
    "fsdp_like": Workload(fsdp_like, smoke={"steps": 3, "width": 256, "layers": 3}),
    "quantised_load": Workload(
        quantised_load, smoke={"steps": 4, "layers": 3, "width": 256, "matrices": (4, 12)}
    ),
}
