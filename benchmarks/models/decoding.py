"""One decoding step of a language model as servers capture it: static inputs and a static cache.

The step for a batch reads and writes the first rows of the same buffers, so graphs of all batch
sizes share them; a graph owns only its result and its scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.models.llama import ModelShape, rotate
from benchmarks.models.workloads import BF16, make_llama

if TYPE_CHECKING:
    from torch import nn

PoolHandle = tuple[int, int]
Captured = Sequence[tuple[torch.cuda.CUDAGraph, Tensor]]
"""Graphs and their results."""


class Decoder:
    """A model with its buffers, and the stream on which its steps warm up and are captured."""

    def __init__(self, shape: ModelShape, rows: int) -> None:
        self.model = make_llama(shape).requires_grad_(False)
        self.stream = torch.cuda.Stream()
        self.tokens = torch.zeros(rows, 1, dtype=torch.long, device="cuda")
        self.positions = torch.zeros(rows, dtype=torch.long, device="cuda")
        self.places = torch.arange(shape.longest, device="cuda")
        size = (2, rows, shape.heads, shape.longest, shape.width // shape.heads)
        self.cache = [torch.zeros(size, dtype=BF16, device="cuda") for _ in range(shape.layers)]

    def step(self, rows: int) -> Tensor:
        """Logits of the next token of the first rows; more than 50 kernels a layer."""
        positions = self.positions[:rows]
        angles = [self.model.get_buffer(name)[positions] for name in ("cosine", "sine")]
        cosine, sine = (angle[:, None, None, :] for angle in angles)
        ahead = (self.places > positions[:, None])[:, None, None, :]
        x = self.model.embedding(self.tokens[:rows])
        for layer, cache in zip(self.model.layers, self.cache, strict=True):
            attention = layer.get_submodule("attention")
            normed = layer.get_submodule("attention_norm")(x)
            q, k, v = split(attention, normed)
            q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
            keys, values = cache[:, :rows]
            where = positions[:, None, None, None].expand_as(k)
            keys.scatter_(2, where, k)
            values.scatter_(2, where, v)
            x = x + attention.out(attend(q, keys, values, ahead))
            normed = layer.get_submodule("feed_forward_norm")(x)
            x = x + layer.get_submodule("feed_forward")(normed)
        logits: Tensor = self.model.head(self.model.norm(x[:, -1]))
        return logits

    def warm_up(self, batches: Iterable[int]) -> None:
        """Also gives cuBLAS its workspace for the stream, outside of all graphs."""
        with torch.no_grad(), torch.cuda.stream(self.stream):
            for rows in batches:
                for _ in range(2):
                    self.step(rows)
        torch.cuda.synchronize()

    def capture(self, rows: int, pool: PoolHandle | None) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph, pool=pool, stream=self.stream):
            logits = self.step(rows)
        return graph, logits


def memory_of(capture: Callable[[], Captured]) -> tuple[int, int]:
    """Bytes that the graphs of `capture` reserve, and those of their results. Releases all."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    captured = capture()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    # The growth of `memory_allocated()` would be wrong: native also counts the unsplit rest of a
    # block.
    return torch.cuda.memory_reserved() - before, sum(result.nbytes for _, result in captured)


def split(attention: nn.Module, x: Tensor) -> list[Tensor]:
    """Queries, keys and values by head, of one new token a row."""
    rows, columns, width = x.shape
    heads = (rows, columns, attention.heads, width // attention.heads)
    return [part.view(heads).transpose(1, 2) for part in attention.qkv(x).chunk(3, dim=-1)]


def attend(q: Tensor, keys: Tensor, values: Tensor, ahead: Tensor) -> Tensor:
    # Written out, because which fused kernel torch chooses depends on the card.
    scores = (q @ keys.transpose(-1, -2)).float() / q.shape[-1] ** 0.5
    weights = F.softmax(scores.masked_fill(ahead, float("-inf")), dim=-1).to(values.dtype)
    rows, heads, columns, width = q.shape
    return (weights @ values).transpose(1, 2).reshape(rows, columns, heads * width)
