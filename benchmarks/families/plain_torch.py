"""Families that need nothing but torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.families.training import make, tokens, train

VOCABULARY = 32000


class Transformer(nn.Module):
    """torch's own layers with causal attention."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        hidden = self.embed(ids)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        scores: Tensor = self.head(hidden)
        return scores


class Recurrent(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.cells = nn.LSTM(width, width, layers, batch_first=True, dropout=0.2)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.head(self.cells(self.embed(ids))[0])
        return scores


def _next_token(model: nn.Module, shapes: Sequence[tuple[int, int]], autocast: bool) -> None:
    def loss(ids: Tensor) -> Tensor:
        scores = model(ids[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())

    batches: Iterator[Tensor] = (tokens(*shape, VOCABULARY) for shape in shapes)
    train(model, batches, loss, autocast=autocast)


def transformer(shapes: Sequence[tuple[int, int]], width: int, layers: int) -> None:
    """In mixed precision."""
    _next_token(make(lambda: Transformer(width, layers)), shapes, autocast=True)


def lstm(shapes: Sequence[tuple[int, int]], width: int, layers: int) -> None:
    """A recurrent language model, in floats."""
    _next_token(make(lambda: Recurrent(width, layers)), shapes, autocast=False)


def fsdp2(shapes: Sequence[tuple[int, int]], width: int, layers: int) -> None:
    """Each rank has a share of the weights, gathered in bfloat16. Needs a process group."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = make(lambda: Transformer(width, layers))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    _next_token(model, shapes, autocast=False)
