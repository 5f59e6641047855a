"""Families of models of images. Each function trains for a few steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.families.training import images, make, train

CLASSES = 1000


def _classify(
    build: Callable[..., nn.Module],
    batches: Sequence[int],
    side: int,
    autocast: bool,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
) -> None:
    model = make(lambda: build(weights=None))

    def given() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in batches:
            yield images(batch, side), torch.randint(CLASSES, (batch,)).cuda()

    train(
        model,
        given(),
        lambda pair: F.cross_entropy(model(pair[0]), pair[1]),
        optimizer(model.parameters()) if optimizer else None,
        autocast,
    )


def resnet50(batches: Sequence[int], side: int) -> None:
    """Convolutions in floats, with momentum."""
    from torchvision.models import resnet50 as build

    def momentum(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    _classify(build, batches, side, False, momentum)


def convnext(batches: Sequence[int], side: int) -> None:
    """Convolutions over one channel each, in mixed precision."""
    from torchvision.models import convnext_tiny

    _classify(convnext_tiny, batches, side, autocast=True)


def vit(batches: Sequence[int], side: int) -> None:
    """A transformer of patches, in mixed precision."""
    from torchvision.models import vit_b_16

    _classify(vit_b_16, batches, side, autocast=True)


def detection(batches: Sequence[int], side: int) -> None:
    """Faster R-CNN: the boxes of the second stage depend on computed values."""
    from torchvision.models.detection import fasterrcnn_resnet50_fpn

    model = make(
        lambda: fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, min_size=side)
    )

    def given() -> Iterator[tuple[Any, Any]]:
        for batch in batches:
            corner = side // 4
            boxes = torch.tensor([[8, 8, corner, corner], [corner, corner, 3 * corner, side - 8]])
            target = {"boxes": boxes.float().cuda(), "labels": torch.tensor([1, 2]).cuda()}
            yield list(images(batch, side)), [target] * batch

    def loss(pair: tuple[Any, Any]) -> Tensor:
        parts = model(*pair)
        return torch.stack(list(parts.values())).sum()

    train(model, given(), loss)


def unet(batches: Sequence[int], side: int, widths: Sequence[int]) -> None:
    """Denoising by a text, as Stable Diffusion is trained, in mixed precision."""
    from diffusers import DDPMScheduler, UNet2DConditionModel

    model = make(
        lambda: UNet2DConditionModel(
            sample_size=side,
            block_out_channels=tuple(widths),
            cross_attention_dim=768,
            attention_head_dim=8,
        )
    )
    scheduler = DDPMScheduler()

    def given() -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        for batch in batches:
            latents = images(batch, side, channels=4)
            noise = torch.randn_like(latents)
            steps = torch.randint(1000, (batch,)).cuda()
            text = torch.randn(batch, 77, 768).cuda()
            yield scheduler.add_noise(latents, noise, steps), steps, text, noise

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        noisy, steps, text, noise = batch
        return F.mse_loss(model(noisy, steps, text).sample.float(), noise)

    train(model, given(), loss, autocast=True)
