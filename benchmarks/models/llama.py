"""A Llama-shaped language model: RMSNorm, rotary positions, SwiGLU, causal attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelShape:
    """168 million parameters by default."""

    vocabulary: int = 32_000
    width: int = 1024
    layers: int = 8
    heads: int = 16
    hidden: int = 2816
    longest: int = 2048


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        mean_square = x.float().pow(2).mean(-1, keepdim=True)
        return (x * torch.rsqrt(mean_square + 1e-5)).to(x.dtype) * self.scale


class Attention(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class FeedForward(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Layer(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(shape.width)
        self.attention = Attention(shape)
        self.feed_forward_norm = RmsNorm(shape.width)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class Llama(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RmsNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        angles = rotary_angles(shape.longest, shape.width // shape.heads)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        cosine, sine = self.get_buffer("cosine")[:length], self.get_buffer("sine")[:length]
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        out: Tensor = self.head(self.norm(x))
        return out

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross entropy of each token given those before it."""
        logits = self(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def rotary_angles(length: int, head_width: int) -> Tensor:
    rates = 10_000.0 ** (-torch.arange(0, head_width, 2).float() / head_width)
    return torch.arange(length).float()[:, None] * rates[None, :]


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turns each pair of channels by the angle of its position."""
    even, odd = x.float().chunk(2, dim=-1)
    turned = torch.cat((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1)
    return turned.to(x.dtype)
