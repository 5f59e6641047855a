"""Programs that keep many small tensors of mixed lifetimes for a backward pass.

They use plain operators of PyTorch, and are not tuned for any allocator. They are workloads as in
`benchmarks.models.workloads`. Recorded traces of them are in `benchmarks/replay/traces`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.models.llama import RmsNorm
from benchmarks.models.workloads import (
    BF16,
    SEED,
    StepCallback,
    Workload,
    lengths,
    make_tokens,
    on_device,
    train_step,
)


def segment_sum(x: Tensor) -> Tensor:
    """The sum of the values between each pair of positions of the last dimension."""
    length = x.shape[-1]
    lower = torch.ones((length, length), dtype=torch.bool, device=x.device)
    x = x[..., None].expand(*x.shape, length)
    x = x.masked_fill(~lower.tril(-1), 0).cumsum(-2)
    return x.masked_fill(~lower.tril(0), -torch.inf)


class StateSpace(nn.Module):
    """A state-space layer of the second kind (Mamba-2), computed in chunks, without kernels of its
    own: each step of the formula is an operator of PyTorch."""

    def __init__(self, width: int, head_width: int, state: int, chunk: int) -> None:
        super().__init__()
        self.inner, self.state, self.chunk = 2 * width, state, chunk
        self.head_width, self.heads = head_width, 2 * width // head_width
        convolved = self.inner + 2 * state
        self.project = nn.Linear(width, self.inner + convolved + self.heads, bias=False)
        self.mix = nn.Conv1d(convolved, convolved, 4, groups=convolved, padding=3)
        self.rate = nn.Parameter(torch.zeros(self.heads))
        self.skip = nn.Parameter(torch.ones(self.heads))
        self.norm = RmsNorm(self.inner)
        self.out = nn.Linear(self.inner, width, bias=False)

    def to_chunks(self, x: Tensor, pad: int) -> Tensor:
        x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, pad))
        return x.reshape(x.shape[0], -1, self.chunk, *x.shape[2:])

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        sizes = (self.inner, self.inner + 2 * self.state, self.heads)
        gate, mixed, step = self.project(x).split(sizes, dim=-1)
        mixed = F.silu(self.mix(mixed.transpose(1, 2))[..., :length].transpose(1, 2))
        values, b, c = mixed.split((self.inner, self.state, self.state), dim=-1)
        values = values.reshape(batch, length, self.heads, self.head_width).float()
        b, c = (part.float()[:, :, None].repeat_interleave(self.heads, dim=2) for part in (b, c))
        step = F.softplus(step.float())
        pad = -length % self.chunk
        skipped = self.skip[:, None] * F.pad(values, (0, 0, 0, 0, 0, pad))
        values = values * step[..., None]
        decay = -torch.exp(self.rate.float()) * step
        values, decay, b, c = (self.to_chunks(part, pad) for part in (values, decay, b, c))
        decay = decay.permute(0, 3, 1, 2)
        decay_sum = decay.cumsum(-1)
        # Within the chunks.
        weight = (c[:, :, :, None] * b[:, :, None]).sum(-1)
        weight = weight[..., None] * segment_sum(decay).exp().permute(0, 2, 3, 4, 1)[..., None]
        inside = (weight.sum(-1)[..., None] * values[:, :, None]).sum(3)
        # Between them.
        remaining = torch.exp(decay_sum[..., -1:] - decay_sum)
        b = b * remaining.permute(0, 2, 3, 1)[..., None]
        states = (b[..., None, :] * values[..., None]).sum(2)
        states = torch.cat((torch.zeros_like(states[:, :1]), states), dim=1)
        passed = segment_sum(F.pad(decay_sum[..., -1], (1, 0))).exp().transpose(1, 3)
        states = (passed[..., None, None] * states[:, :, None]).sum(1)[:, :-1]
        outside = (c[..., None, :] * states[:, :, None]).sum(-1)
        outside = outside * decay_sum.exp().permute(0, 2, 3, 1)[..., None]
        y = (inside + outside).reshape(batch, -1, self.heads, self.head_width) + skipped
        y = y[:, :length].reshape(batch, length, self.inner)
        out: Tensor = self.out(self.norm(y * F.silu(gate.float())).to(x.dtype))
        return out


def state_space(
    on_step: StepCallback,
    *,
    steps: int = 20,
    vocabulary: int = 8_000,
    width: int = 512,
    layers: int = 12,
    head_width: int = 64,
    state: int = 64,
    chunk: int = 64,
    batch: tuple[int, int] = (1, 4),
    length: tuple[int, int] = (50, 700),
) -> Sequence[Tensor]:
    """A state-space language model trained on texts of every length, in mixed precision."""
    with on_device(torch.float32):
        words = nn.Embedding(vocabulary, width)
        norms = nn.ModuleList(RmsNorm(width) for _ in range(layers + 1))
        model = nn.ModuleList(StateSpace(width, head_width, state, chunk) for _ in range(layers))
    parameters = [*words.parameters(), *norms.parameters(), *model.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    for step, (rows, columns) in enumerate(lengths(steps, batch, length)):
        tokens = make_tokens(rows, columns + 1, step, vocabulary).cuda()
        with torch.autocast("cuda", BF16):
            x = words(tokens[:, :-1])
            for norm, layer in zip(norms, model, strict=False):
                x = x + layer(norm(x))
            logits = norms[-1](x) @ words.weight.T
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        on_step(step, train_step(loss, optimizer))
    return parameters


class SpeechLayer(nn.Module):
    """Attention with a mask of the lengths, and a feed-forward part, both with dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.first = nn.LayerNorm(width)
        self.second = nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        rows, length, width = x.shape
        shape = (rows, length, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(2, 3) * shape[-1] ** -0.5 + mask
        mixed = F.dropout(scores.softmax(-1), 0.1) @ v
        mixed = self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        x = self.first(x + F.dropout(mixed, 0.1))
        hidden = F.dropout(F.gelu(self.up(x)), 0.1)
        out: Tensor = self.second(x + F.dropout(self.down(hidden), 0.1))
        return out


class SpeechEncoder(nn.Module):
    """Convolutions over the samples, then layers of attention, as wav2vec 2.0 has them."""

    KERNELS, STRIDES = (10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2)

    def __init__(self, channels: int, width: int, layers: int, heads: int, letters: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv1d(channels if i else 1, channels, kernel, stride=stride, bias=False)
            for i, (kernel, stride) in enumerate(zip(self.KERNELS, self.STRIDES, strict=True))
        )
        self.group_norm = nn.GroupNorm(channels, channels)
        self.norm = nn.LayerNorm(channels)
        self.project = nn.Linear(channels, width)
        self.positions = nn.Conv1d(width, width, 128, padding=64, groups=16)
        self.layers = nn.ModuleList(SpeechLayer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, letters)

    def frames(self, samples: int) -> int:
        for kernel, stride in zip(self.KERNELS, self.STRIDES, strict=True):
            samples = (samples - kernel) // stride + 1
        return samples

    def forward(self, sound: Tensor, lasting: Tensor) -> Tensor:
        x = sound[:, None]
        for index, convolution in enumerate(self.convolutions):
            x = convolution(x)
            x = F.gelu(self.group_norm(x) if index == 0 else x)
        x = F.dropout(self.project(self.norm(x.transpose(1, 2))), 0.1)
        inside = torch.arange(x.shape[1], device=x.device) < lasting[:, None]
        x = x * inside[..., None]
        placed = self.positions(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        x = x + F.gelu(placed)
        mask = torch.zeros(inside.shape, device=x.device).masked_fill(~inside, -1e4)
        for layer in self.layers:
            x = layer(x, mask[:, None, None])
        out: Tensor = self.head(x)
        return out


def speech(
    on_step: StepCallback,
    *,
    steps: int = 30,
    channels: int = 512,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    letters: int = 32,
    rate: int = 16_000,
    batch: tuple[int, int] = (1, 6),
    milliseconds: tuple[int, int] = (500, 4_000),
) -> Sequence[Tensor]:
    """A speech encoder trained with CTC on recordings of every length, in mixed precision."""
    with on_device(torch.float32):
        model = SpeechEncoder(channels, width, layers, heads, letters)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    rng = random.Random(SEED)
    for step in range(steps):
        samples = [rng.randint(*milliseconds) * rate // 1000 for _ in range(rng.randint(*batch))]
        frames = [model.frames(count) for count in samples]
        generator = torch.Generator().manual_seed(SEED * 1_000_003 + step)
        sound = torch.randn((len(samples), max(samples)), generator=generator).cuda()
        spoken = [max(1, count // 4) for count in frames]
        text = torch.randint(1, letters, (sum(spoken),), generator=generator).cuda()
        lasting = torch.tensor(frames)
        with torch.autocast("cuda", BF16):
            scores = model(sound, lasting.cuda())
        scores = scores.float().log_softmax(-1).transpose(0, 1)
        # The lengths stay on the host, which chooses the kernel by them.
        loss = F.ctc_loss(scores, text, lasting, torch.tensor(spoken), zero_infinity=True)
        on_step(step, train_step(loss, optimizer))
    return list(model.parameters())


MIXED_LIFETIMES: Mapping[str, Workload] = {
    "state_space": Workload(
        state_space,
        smoke={"steps": 3, "vocabulary": 500, "width": 64, "layers": 2, "length": (16, 100)},
    ),
    "speech": Workload(
        speech,
        smoke={
            "steps": 3,
            "channels": 32,
            "width": 64,
            "layers": 2,
            "heads": 2,
            "milliseconds": (200, 800),
        },
    ),
}
