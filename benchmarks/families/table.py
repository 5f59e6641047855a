"""The families: their functions, their requirements, and the sizes of card for each.

Needs no torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

MIB = 1 << 20
PAGE_MIB = 2
SIZES = ("ample", "tight", "short")
AROUND = {"above": 1.02, "below": 0.98}
"""Two more sizes of card, as shares of what the allocator reserves on a GPU with ample memory."""
PLAIN = "_plain"
"""Ends the name of a family that runs a second time without cuDNN."""


def whole_pages(size: float, *, up: bool) -> int:
    """MiB of the pages that begin within `size` MiB, or without `up` of those within it."""
    return PAGE_MIB * (int(size / PAGE_MIB) + up)


@dataclass(frozen=True)
class Family:
    run: str
    """Module of this package and function."""
    sizes: Mapping[str, Any]
    peaks: tuple[int, int] = (0, 0)
    """MiB reserved and allocated on the simulated GPU without a limit, under the native allocator.
    They are the measure of the sizes of card, and stay as they are when the simulation changes."""
    needs: tuple[str, ...] = ()
    """Packages beside torch."""
    plain: bool = False
    """On a GPU it runs a second time without cuDNN, which the simulated GPU does not have."""
    ranks: int = 1
    smoke: Mapping[str, Any] = field(default_factory=dict)
    """Sizes of a smoke test; empty if it is not part of one."""

    def limit(self, size: str) -> int:
        """MiB that the allocator may reserve on this size of card.

        ample: a quarter more than native reserves; tight: 3 % more than that; short: 3 % less
        than is allocated at the peak, so that it fits under no allocator.
        """
        reserved, allocated = self.peaks
        wanted = {"ample": 1.25 * reserved, "tight": 1.03 * reserved, "short": 0.97 * allocated}
        return whole_pages(wanted[size], up=size != "short")

    def sizes_of(self, smoke: bool, batch: int | None = None) -> dict[str, Any]:
        """The arguments of the function; `batch` replaces the size of each batch."""
        sizes = dict(self.smoke if smoke else self.sizes)
        if batch is not None and "shapes" in sizes:
            sizes["shapes"] = [(batch, length) for _, length in sizes["shapes"]]
        elif batch is not None:
            sizes["batches"] = [batch] * len(sizes["batches"])
        return sizes

    def batch(self, smoke: bool) -> int:
        """The first batch size of the family."""
        sizes = self.sizes_of(smoke)
        return int(sizes["shapes"][0][0] if "shapes" in sizes else sizes["batches"][0])

    def missing(self) -> list[str]:
        return [name for name in self.needs if find_spec(name) is None]

    def function(self) -> Callable[..., None]:
        module, _, name = self.run.partition(".")
        found: Callable[..., None] = getattr(
            importlib.import_module(f"benchmarks.families.{module}"), name
        )
        return found


HF = ("transformers",)
VISION = ("torchvision",)

FAMILIES: dict[str, Family] = {
    # The slowest comes first, so that others run at the same time.
    "compiled": Family(
        "language.compiled",
        {"shapes": [(4, 512), (6, 768)], "width": 1024, "layers": 4, "vocabulary": 32000},
        needs=HF,
        peaks=(2356, 2219),
    ),
    "llama": Family(
        "language.llama",
        {
            "shapes": [(4, 512), (3, 768), (4, 640)],
            "width": 1024,
            "layers": 12,
            "vocabulary": 32000,
        },
        needs=HF,
        plain=True,
        peaks=(4622, 3579),
    ),
    "gpt2": Family(
        "language.gpt2",
        {"shapes": [(3, 512), (2, 768), (2, 640)], "layers": 12},
        needs=HF,
        plain=True,
        peaks=(4140, 3863),
    ),
    "bert": Family(
        "language.bert",
        {"shapes": [(16, 192), (16, 256), (24, 128)], "layers": 12},
        needs=HF,
        peaks=(4148, 3867),
    ),
    "t5": Family(
        "language.t5",
        {"shapes": [(8, 384), (8, 512), (12, 320)], "width": 512, "layers": 8},
        needs=HF,
        peaks=(4004, 3789),
    ),
    "lora": Family(
        "language.lora",
        {
            "shapes": [(2, 640), (1, 1024), (2, 768)],
            "width": 1536,
            "layers": 12,
            "vocabulary": 64000,
        },
        needs=("transformers", "peft"),
        plain=True,
        peaks=(3516, 2292),
    ),
    "mixtral": Family(
        "language.mixtral",
        {"shapes": [(4, 384), (4, 512), (3, 448)], "width": 768, "layers": 6, "experts": 8},
        needs=HF,
        peaks=(3188, 2685),
    ),
    "generate": Family(
        "language.generate",
        {
            "shapes": [(24, 384), (32, 512), (16, 768)],
            "width": 1536,
            "layers": 16,
            "vocabulary": 32000,
            "new": 40,
        },
        needs=HF,
        plain=True,
        peaks=(2704, 2396),
    ),
    "trainer": Family(
        "language.trainer",
        {"shapes": [(2, 512)] * 3, "layers": 12},
        needs=("transformers", "accelerate"),
        peaks=(3666, 3612),
    ),
    "whisper": Family(
        "language.whisper",
        {"batches": [8, 6, 8], "layers": 6},
        needs=HF,
        plain=True,
        peaks=(3874, 3582),
    ),
    "resnet50": Family(
        "vision.resnet50",
        {"batches": [32, 32, 24], "side": 224},
        needs=VISION,
        plain=True,
        peaks=(3336, 2934),
    ),
    "convnext": Family(
        "vision.convnext",
        {"batches": [48, 48, 40], "side": 224},
        needs=VISION,
        plain=True,
        peaks=(3708, 3354),
    ),
    "vit": Family(
        "vision.vit",
        {"batches": [32, 32, 24], "side": 224},
        needs=VISION,
        plain=True,
        peaks=(3714, 3401),
    ),
    "detection": Family(
        "vision.detection",
        {"batches": [4, 4, 3], "side": 512},
        needs=VISION,
        plain=True,
        peaks=(3078, 2851),
    ),
    "unet": Family(
        "vision.unet",
        {"batches": [3, 3, 2], "side": 56, "widths": [160, 320, 480, 640]},
        needs=("diffusers",),
        plain=True,
        peaks=(4144, 3903),
    ),
    "transformer": Family(
        "plain_torch.transformer",
        {"shapes": [(8, 384), (8, 512), (6, 576)], "width": 768, "layers": 8},
        smoke={"shapes": [(2, 64), (2, 96)], "width": 128, "layers": 2},
        plain=True,
        peaks=(4084, 3708),
    ),
    "lstm": Family(
        "plain_torch.lstm",
        {"shapes": [(24, 96), (32, 128), (32, 112)], "width": 1024, "layers": 3},
        smoke={"shapes": [(2, 16), (3, 24)], "width": 128, "layers": 2},
        plain=True,
        peaks=(4012, 3334),
    ),
    "fsdp2": Family(
        "plain_torch.fsdp2",
        {"shapes": [(4, 384), (4, 512), (3, 576)], "width": 1024, "layers": 12},
        ranks=2,
        smoke={"shapes": [(2, 64), (2, 96)], "width": 128, "layers": 2},
        peaks=(3538, 2723),
    ),
    "recommender": Family(
        "uncommon.recommender",
        {
            "shapes": [(16384, 12), (8192, 24), (24576, 10)],
            "rows": [1_500_000, 1_000_000, 200_000, 100_000, 30_000, 5_000],
            "sparse_from": 500_000,
            "width": 64,
        },
        peaks=(3436, 2772),
    ),
    "ppo": Family(
        "uncommon.ppo",
        {"batches": [64, 96, 80], "steps": 32, "parts": 8, "widths": [32, 64, 64]},
        peaks=(3358, 1800),
    ),
    "retrieval": Family(
        "uncommon.retrieval",
        {
            "shapes": [(4096, 12), (8192, 6), (6144, 8)],
            "vocabulary": 32000,
            "width": 256,
            "layers": 2,
            "size": 128,
            "documents": 1_000_000,
            "chunk": 131_072,
        },
        peaks=(4918, 3361),
    ),
    "points": Family(
        "uncommon.points",
        {"shapes": [(8, 2048), (4, 3072), (12, 1536)], "widths": [64, 64, 128], "near": 20},
        peaks=(3272, 1770),
    ),
    "graph": Family(
        "uncommon.graph",
        {
            "shapes": [(4, 8000), (3, 10000), (8, 4500)],
            "degree": 10,
            "width": 96,
            "layers": 3,
        },
        peaks=(4080, 2219),
    ),
    "depths": Family(
        "uncommon.depths",
        {
            "shapes": [(6, 768), (4, 1024), (8, 640)],
            "vocabulary": 32000,
            "width": 768,
            "layers": 8,
            "part": 8,
        },
        peaks=(5284, 3764),
    ),
    "diffusion3d": Family(
        "signals.diffusion3d",
        {"shapes": [(2, 48), (1, 64), (2, 56)], "widths": [64, 128, 256], "steps": 8},
        peaks=(4330, 2529),
    ),
    "segmentation3d": Family(
        "signals.segmentation3d",
        {"shapes": [(2, 80), (1, 96), (2, 96), (1, 112)], "widths": [32, 64, 128, 256]},
        peaks=(2926, 2192),
    ),
    "codec": Family(
        "signals.codec",
        {"shapes": [(16, 24000), (12, 32000), (16, 16000)], "width": 32, "books": 8, "codes": 1024},
        peaks=(2560, 2319),
    ),
}
