"""Families of volumes and of sound: they denoise and segment volumes, and compress sound.

They need nothing but torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from benchmarks.families.training import make, train

NOISES = 1000
"""Levels of noise of the diffusion."""
ORGANS = 4
"""Classes of the segmentation."""
STRIDES = (2, 4, 5, 8)
"""Of the codec's encoder, from the sound on."""
SPECTRA = (512, 1024, 2048)
"""Windows of the codec's loss."""

Shapes = Sequence[tuple[int, int]]


def _volumes(shapes: Shapes) -> Iterator[Tensor]:
    for batch, side in shapes:
        yield torch.randn(batch, 1, side, side, side).to("cuda")


class Residual(nn.Module):
    """Two convolutions with group norms; the level of noise shifts the first."""

    def __init__(self, inside: int, outside: int, levels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for width in (inside, outside))
        self.first = nn.Conv3d(inside, outside, 3, padding=1)
        self.shift = nn.Linear(levels, outside)
        self.second = nn.Conv3d(outside, outside, 3, padding=1)
        self.skip = nn.Conv3d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, volume: Tensor, level: Tensor) -> Tensor:
        hidden = self.first(F.silu(self.norms[0](volume)))
        hidden = hidden + self.shift(level)[:, :, None, None, None]
        hidden = F.dropout(F.silu(self.norms[1](hidden)), 0.1, self.training)
        result: Tensor = self.skip(volume) + self.second(hidden)
        return result


class Attention(nn.Module):
    """Between all positions of a small volume."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(8, width)
        self.inputs = nn.Linear(width, 3 * width)
        self.outputs = nn.Linear(width, width)

    def forward(self, volume: Tensor) -> Tensor:
        places = self.norm(volume).flatten(2).transpose(1, 2)
        given = self.inputs(places).unflatten(2, (3, self.heads, -1)).transpose(1, 3)
        mixed = F.scaled_dot_product_attention(*given.unbind(2))
        added = self.outputs(mixed.transpose(1, 2).flatten(2))
        return volume + added.transpose(1, 2).reshape(volume.shape)


class Denoiser(nn.Module):
    """A U-Net that predicts the noise of a volume."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        levels = 4 * widths[0]
        self.level = nn.Sequential(
            nn.Linear(widths[0], levels), nn.SiLU(), nn.Linear(levels, levels)
        )
        self.stem = nn.Conv3d(1, widths[0], 3, padding=1)
        self.down = nn.ModuleList(Residual(w, w, levels) for w in widths[:-1])
        self.shrink = nn.ModuleList(
            nn.Conv3d(w, v, 3, stride=2, padding=1) for w, v in pairwise(widths)
        )
        self.middle = Residual(widths[-1], widths[-1], levels)
        self.attention = Attention(widths[-1])
        self.grow = nn.ModuleList(
            nn.ConvTranspose3d(v, w, 4, stride=2, padding=1) for w, v in pairwise(widths)
        )
        self.up = nn.ModuleList(Residual(2 * w, w, levels) for w in widths[:-1])
        self.head = nn.Sequential(
            nn.GroupNorm(8, widths[0]), nn.SiLU(), nn.Conv3d(widths[0], 1, 3, padding=1)
        )

    def forward(self, volume: Tensor, steps: Tensor) -> Tensor:
        half = self.stem.out_channels // 2
        rates = torch.exp(-math.log(10000) * torch.arange(half, device=steps.device) / half)
        angles = steps[:, None] * rates
        level = self.level(torch.cat([angles.sin(), angles.cos()], dim=1))
        hidden = self.stem(volume)
        kept = []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            kept.append(block(hidden, level))
            hidden = shrink(kept[-1])
        hidden = self.attention(self.middle(hidden, level))
        for block, grow in zip(reversed(self.up), reversed(self.grow), strict=True):
            hidden = block(torch.cat([grow(hidden), kept.pop()], dim=1), level)
        noise: Tensor = self.head(hidden)
        return noise


def diffusion3d(shapes: Shapes, widths: Sequence[int], steps: int) -> None:
    """A diffusion model of volumes, in floats. The moving average of its weights then samples.

    A shape is a number of volumes and their side.
    """
    model = make(lambda: Denoiser(widths))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    clean_share = torch.linspace(1 - 1e-4, 0.98, NOISES, device="cuda").cumprod(0)

    def loss(clean: Tensor) -> Tensor:
        levels = torch.randint(NOISES, (len(clean),), device="cuda")
        share = clean_share[levels].view(-1, 1, 1, 1, 1)
        noise = torch.randn_like(clean)
        noisy = share.sqrt() * clean + (1 - share).sqrt() * noise
        return F.mse_loss(model(noisy, levels), noise)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    optimizer.register_step_post_hook(lambda *_: average.update_parameters(model))
    train(model, _volumes(shapes), loss, optimizer)
    average.eval()
    with torch.no_grad():
        batch, side = shapes[0]
        volume = torch.randn(2 * batch, 1, side, side, side, device="cuda")
        for level in torch.linspace(NOISES - 1, 0, steps).long().tolist():
            levels = torch.full((len(volume),), level, device="cuda")
            share = clean_share[level]
            noise = average(volume, levels)
            clean = ((volume - (1 - share).sqrt() * noise) / share.sqrt()).clamp(-1, 1)
            volume = share.sqrt() * clean + (1 - share).sqrt() * torch.randn_like(volume)
        volume.cpu()


def _double(inside: int, outside: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(inside, outside, 3, stride=stride, padding=1),
        nn.InstanceNorm3d(outside, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
        nn.Conv3d(outside, outside, 3, padding=1),
        nn.InstanceNorm3d(outside, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
    )


class Segmenter(nn.Module):
    """A U-Net with scores at each resolution."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.stem = _double(1, widths[0])
        self.down = nn.ModuleList(_double(w, v, stride=2) for w, v in pairs)
        self.grow = nn.ModuleList(nn.ConvTranspose3d(v, w, 2, stride=2) for w, v in pairs)
        self.up = nn.ModuleList(_double(2 * w, w) for w, _ in pairs)
        self.heads = nn.ModuleList(nn.Conv3d(w, ORGANS, 1) for w, _ in pairs)

    def forward(self, volume: Tensor) -> list[Tensor]:
        """The scores, the finest last."""
        kept = [self.stem(volume)]
        for down in self.down:
            kept.append(down(kept[-1]))
        hidden = kept.pop()
        scores = []
        upwards = (reversed(each) for each in (self.grow, self.up, self.heads))
        for grow, up, head in zip(*upwards, strict=True):
            hidden = up(torch.cat([grow(hidden), kept.pop()], dim=1))
            scores.append(head(hidden))
        return scores


def segmentation3d(shapes: Shapes, widths: Sequence[int]) -> None:
    """A segmentation of volumes: half of the steps in floats, half in mixed precision with the
    channels last. A shape is a number of volumes and their side."""
    model = make(lambda: Segmenter(widths))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.99, nesterov=True, weight_decay=3e-5
    )

    def given(chosen: Shapes) -> Iterator[tuple[Tensor, Tensor]]:
        for (batch, side), volume in zip(chosen, _volumes(chosen), strict=True):
            yield volume, torch.randint(ORGANS, (batch, side, side, side)).cuda()

    def one(scores: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy, less the overlap of each class."""
        shares = scores.float().softmax(1)
        marks = torch.zeros_like(shares).scatter_(1, labels[:, None], 1.0)
        both = (shares * marks).sum((2, 3, 4))
        overlap = 2 * both / (shares.sum((2, 3, 4)) + marks.sum((2, 3, 4)))
        return F.cross_entropy(scores, labels) - overlap.mean()

    def loss(pair: tuple[Tensor, Tensor]) -> Tensor:
        volume, labels = pair
        total = torch.zeros((), device="cuda")
        for scores in model(volume):
            fine = labels[:, None].float()
            coarse = F.interpolate(fine, size=scores.shape[2:], mode="nearest")
            total = total + one(scores, coarse[:, 0].long())
        return total

    half = len(shapes) // 2
    train(model, given(shapes[:half]), loss, optimizer)
    model.to(memory_format=torch.channels_last_3d)
    last: Iterable[tuple[Tensor, Tensor]] = (
        (volume.to(memory_format=torch.channels_last_3d), labels)
        for volume, labels in given(shapes[half:])
    )
    train(model, last, loss, optimizer, autocast=True)


class Dilated(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.wide = weight_norm(
            nn.Conv1d(width, width // 2, 3, dilation=dilation, padding=dilation)
        )
        self.narrow = weight_norm(nn.Conv1d(width // 2, width, 1))

    def forward(self, sound: Tensor) -> Tensor:
        result: Tensor = sound + self.narrow(F.elu(self.wide(F.elu(sound))))
        return result


class Quantizer(nn.Module):
    """Each codebook codes what the ones before it left. Codebooks follow the means of their
    members, without gradients."""

    def __init__(self, books: int, codes: int, width: int) -> None:
        super().__init__()
        self.books: Tensor
        self.counts: Tensor
        self.register_buffer("books", torch.randn(books, codes, width))
        self.register_buffer("counts", torch.ones(books, codes))

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """The coded frames, and the distance of the frames to them."""
        left, total = frames, torch.zeros_like(frames)
        for book, counts in zip(self.books, self.counts, strict=True):
            rows = left.detach().flatten(0, 1)
            squares = rows.square().sum(1, keepdim=True) + book.square().sum(1)
            nearest = (squares - 2 * rows @ book.t()).argmin(1)
            coded = F.embedding(nearest, book).view_as(left)
            counts.mul_(0.99).add_(torch.bincount(nearest, minlength=len(book)), alpha=0.01)
            means = torch.zeros_like(book).index_add_(0, nearest, rows)
            # Codes without members start again at a frame.
            restarted = rows[torch.randint(len(rows), (len(book),), device=rows.device)]
            moved = book.lerp(means / counts.clamp(min=0.01)[:, None], 0.01)
            book.copy_(torch.where(counts[:, None] < 0.1, restarted, moved))
            total = total + coded
            left = left - coded
        # The decoder's gradient passes to the encoder as it is.
        return frames + (total - frames).detach(), F.mse_loss(frames, total.detach())


class Codec(nn.Module):
    def __init__(self, width: int, books: int, codes: int) -> None:
        super().__init__()
        widths = [width << number for number in range(len(STRIDES) + 1)]
        self.encoder = nn.Sequential(nn.Conv1d(1, width, 7, padding=3))
        self.decoder = nn.Sequential(nn.Conv1d(128, widths[-1], 7, padding=3))
        for (w, v), stride in zip(pairwise(widths), STRIDES, strict=True):
            window = 2 * stride
            inner = [Dilated(w, 1), Dilated(w, 3), nn.ELU()]
            padding = (stride + 1) // 2
            self.encoder.extend([*inner, nn.Conv1d(w, v, window, stride, padding)])
        for (w, v), stride in reversed(list(zip(pairwise(widths), STRIDES, strict=True))):
            padding, more = (stride + 1) // 2, stride % 2
            grow = nn.ConvTranspose1d(v, w, 2 * stride, stride, padding, output_padding=more)
            self.decoder.extend([nn.ELU(), grow, Dilated(w, 1), Dilated(w, 3)])
        self.encoder.extend([nn.ELU(), nn.Conv1d(widths[-1], 128, 7, padding=3)])
        self.decoder.extend([nn.ELU(), nn.Conv1d(width, 1, 7, padding=3), nn.Tanh()])
        self.quantizer = Quantizer(books, codes, 128)

    def forward(self, sound: Tensor) -> tuple[Tensor, Tensor]:
        coded, distance = self.quantizer(self.encoder(sound).transpose(1, 2))
        return self.decoder(coded.transpose(1, 2)), distance


def _spectrum(sound: Tensor, window: int) -> Tensor:
    """The Fourier transform of overlapping frames, as a matrix product."""
    places = torch.arange(window, device=sound.device)
    angles = 2 * math.pi / window * places[:, None] * places[: window // 2 + 1]
    waves = torch.cat([angles.cos(), angles.sin()], dim=1)
    waves = waves * torch.hann_window(window, device=sound.device)[:, None]
    real, imaginary = (sound[:, 0].unfold(1, window, window // 4) @ waves).chunk(2, dim=2)
    return (real.square() + imaginary.square()).clamp(min=1e-9).sqrt()


def codec(shapes: Shapes, width: int, books: int, codes: int) -> None:
    """A codec of sound, in floats. A shape is a number of sounds and their samples, a multiple of
    the product of the strides."""
    model = make(lambda: Codec(width, books, codes))

    def loss(sound: Tensor) -> Tensor:
        again, distance = model(sound)
        total = distance + F.l1_loss(again, sound)
        for window in SPECTRA:
            here, there = _spectrum(again, window), _spectrum(sound, window)
            total = total + F.l1_loss(here, there)
            total = total + F.mse_loss(here.log(), there.log())
        return total

    sounds = (torch.randn(batch, 1, samples).mul(0.1).to("cuda") for batch, samples in shapes)
    train(model, sounds, loss)
