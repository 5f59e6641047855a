"""Shared by the programs of the families: seeded inputs, and a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

SEED = 11

Inputs = Mapping[str, Tensor]


def make(build: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> Any:
    """A model with seeded random weights of this type, created on the device."""
    torch.manual_seed(SEED)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("cuda"):
            return build()
    finally:
        torch.set_default_dtype(before)


def tokens(batch: int, length: int, vocabulary: int) -> Tensor:
    """Token ids from the host, as from a data loader."""
    return torch.randint(vocabulary, (batch, length)).to("cuda")


def images(batch: int, side: int, channels: int = 3) -> Tensor:
    return torch.randn(batch, channels, side, side).to("cuda")


def train(
    model: nn.Module,
    batches: Iterable[Any],
    loss_of: Callable[[Any], Tensor],
    optimizer: torch.optim.Optimizer | None = None,
    autocast: bool = False,
) -> None:
    """One step for each batch, by default with AdamW."""
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = optimizer or torch.optim.AdamW(trained, lr=1e-5)
    for batch in batches:
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        # Programs that show their loss do this.
        loss.item()
