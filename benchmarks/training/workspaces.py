"""Workspaces of convolutions: the requests of cuDNN on a GPU and on the simulated one.

Each operator runs alone, forward and for both of its gradients. The bytes that it requested at its
peak, less those of its results, are its workspace. `--compare FILE` compares those of the simulated
GPU with a file that was stored on a GPU. A pair is near if the two differ by at most a tenth of the
operator's tensors, or by 1 MiB.

`--table` measures the cases of csrc/sim/libraries/cudnn/measured.inc again, on a GPU, and writes
them there. The simulated GPU answers from that table. The cases that are compared are others.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness.processes import ROOT, use_allocator
from tools.gpu import gpu_count

PASSES = ("forward", "input", "weight")
TYPES = ("float32", "bfloat16", "float16")
TABLE = ROOT / "csrc" / "sim" / "libraries" / "cudnn" / "measured.inc"
Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Convolution:
    """On `images` of `size` positions in each dimension; "same" padding with a stride of 1.

    One number for the window, the stride or the padding is that of all dimensions.
    """

    images: int
    inputs: int
    outputs: int
    size: Sizes
    window: int | Sizes
    stride: int | Sizes = 1
    padding: int | Sizes = 0
    groups: int = 1
    transposed: bool = False

    def each(self, number: int | Sizes) -> list[int]:
        return [number] * len(self.size) if isinstance(number, int) else list(number)


def same(
    images: int, inputs: int, outputs: int, size: int, window: int, **more: Any
) -> Convolution:
    return Convolution(images, inputs, outputs, (size, size), window, padding=window // 2, **more)


def cube(
    images: int, inputs: int, outputs: int, size: int, window: int, **more: Any
) -> Convolution:
    """On cubes; the padding is "same" for windows of 1 and 3, none for 2, and 1 for 4."""
    padding = (window - 1) // 2
    return Convolution(images, inputs, outputs, (size,) * 3, window, padding=padding, **more)


def volumes() -> list[Convolution]:
    """Convolutions of U-shaped networks of volumes, and of networks of video."""
    found = [
        cube(images, channels, channels, size, 3)
        for images, channels, size in (
            (1, 16, 96),
            (2, 32, 96),
            (1, 64, 64),
            (2, 64, 48),
            (4, 32, 32),
            (4, 64, 32),
            (2, 128, 24),
            (4, 128, 16),
            (2, 256, 12),
            (4, 256, 8),
            (1, 512, 8),
        )
    ]
    for images, channels, size in ((2, 32, 96), (2, 64, 48), (4, 128, 16)):
        found += [
            cube(images, 2 * channels, channels, size, 3),
            cube(images, channels, 2 * channels, size, 3, stride=2),
            cube(images, channels, 2 * channels, size, 2, stride=2),
            cube(images, 2 * channels, channels, size // 2, 2, stride=2, transposed=True),
            cube(images, 2 * channels, channels, size // 2, 4, stride=2, transposed=True),
            cube(images, 2 * channels, channels, size, 1),
            cube(images, channels, channels, size, 3, groups=channels),
        ]
    found += [
        cube(2, 1, 32, 96, 3),
        cube(1, 4, 16, 96, 3),
        cube(4, 4, 64, 32, 3),
        cube(4, 64, 4, 32, 3),
        cube(2, 32, 3, 96, 1),
        cube(2, 64, 64, 32, 3, groups=4),
        Convolution(4, 3, 64, (16, 112, 112), 3, stride=2, padding=1),
        Convolution(4, 64, 64, (8, 56, 56), 3, padding=1),
        Convolution(4, 64, 128, (8, 56, 56), 3, stride=2, padding=1),
        Convolution(4, 64, 128, (8, 56, 56), 1, stride=2),
        Convolution(4, 128, 128, (4, 28, 28), 3, padding=1),
        Convolution(4, 256, 256, (2, 14, 14), 3, padding=1),
    ]
    return found


def shapes() -> list[Convolution]:
    """Convolutions of common networks: residual, U-shaped, depthwise, patches, sound, volumes."""
    found = [Convolution(64, 3, 64, (224, 224), 7, stride=2, padding=3)]
    for images in (8, 64):
        for inside, outside, size in (
            (64, 256, 56),
            (128, 512, 28),
            (256, 1024, 14),
            (512, 2048, 7),
        ):
            found += [
                same(images, outside, inside, size, 1),
                same(images, inside, inside, size, 3),
                same(images, inside, outside, size, 1),
                same(images, inside, inside, 2 * size, 3, stride=2),
                same(images, outside // 2, outside, 2 * size, 1, stride=2),
            ]
    for images in (2, 16):
        for channels, size in ((320, 64), (640, 32), (1280, 16), (1280, 8)):
            found += [
                same(images, channels, channels, size, 3),
                same(images, 2 * channels, channels, size, 3),
                same(images, channels, channels, size, 3, stride=2),
                same(images, 2 * channels, channels, size, 1),
            ]
        found += [same(images, 4, 320, 64, 3), same(images, 320, 4, 64, 3)]
    for channels, size in ((128, 64), (256, 32), (512, 16)):
        found += [same(8, channels, channels, size, 3), same(8, channels, channels, size, 5)]
    for channels, size in ((96, 56), (192, 28), (384, 14), (768, 7)):
        found += [
            same(32, channels, channels, size, 7, groups=channels),
            same(32, channels, channels, size, 3, groups=channels),
            Convolution(32, channels, 2 * channels, (size, size), 2, stride=2),
        ]
    found += [
        Convolution(32, 3, 96, (224, 224), 4, stride=4),
        Convolution(64, 3, 768, (224, 224), 16, stride=16),
        Convolution(16, 3, 1024, (224, 224), 14, stride=14),
        Convolution(8, 80, 768, (3000,), 3, padding=1),
        Convolution(8, 768, 768, (3000,), 3, stride=2, padding=1),
        Convolution(4, 1, 512, (80000,), 10, stride=5),
        Convolution(4, 512, 512, (16000,), 3, stride=2),
        Convolution(2, 32, 32, (32, 64, 64), 3, padding=1),
        Convolution(2, 1, 32, (32, 64, 64), 3, padding=1),
        Convolution(16, 256, 128, (32, 32), 2, stride=2, transposed=True),
        Convolution(16, 256, 128, (16, 16), 4, stride=2, padding=1, transposed=True),
        same(4, 256, 256, 200, 3),
        same(4, 256, 256, 100, 3),
        same(4, 256, 15, 100, 1),
        same(512, 256, 256, 14, 3),
        same(32, 64, 64, 56, 3, groups=2),
        same(32, 512, 512, 14, 3, groups=32),
        same(1, 64, 64, 512, 3),
        same(128, 64, 128, 32, 3),
    ]
    return found + volumes()


def cases(types: Sequence[str]) -> Iterator[tuple[Convolution, str, bool]]:
    for kind in types:
        for last in (False, True):
            for shape in shapes():
                yield shape, kind, last


def measure(shape: Convolution, kind: str, channels_last: bool) -> dict[str, int]:
    """Bytes of workspace, by pass."""
    import torch

    dtype = getattr(torch, kind)
    dimensions = len(shape.size)
    layout = torch.contiguous_format
    if channels_last and dimensions > 1:
        layout = (torch.channels_last, torch.channels_last_3d)[dimensions - 2]
    ones = [1] * dimensions
    inputs = torch.zeros(shape.images, shape.inputs, *shape.size, dtype=dtype, device="cuda")
    first, second = shape.outputs, shape.inputs // shape.groups
    if shape.transposed:
        first, second = shape.inputs, shape.outputs // shape.groups
    weight = torch.zeros(first, second, *shape.each(shape.window), dtype=dtype, device="cuda")
    inputs, weight = inputs.to(memory_format=layout), weight.to(memory_format=layout)
    rest = (
        shape.each(shape.stride),
        shape.each(shape.padding),
        ones,
        shape.transposed,
        [0] * dimensions,
        shape.groups,
    )
    found: dict[str, int] = {}
    output: Any = None
    for name in PASSES:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        if name == "forward":
            results = (output := torch.ops.aten.convolution(inputs, weight, None, *rest),)
        else:
            mask = [name == "input", name == "weight", False]
            results = torch.ops.aten.convolution_backward(output, inputs, weight, None, *rest, mask)
        peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
        mine = sum(r.numel() * r.element_size() for r in results if r is not None)
        found[name] = peak - before - mine
        del results
    return found


def read_table(file: Path) -> list[tuple[Convolution, str, bool]]:
    """The cases of a table, without their bytes."""
    found = []
    for line in file.read_text().splitlines():
        head, images, inputs, outputs, groups, *rest = map(int, line.rstrip(",").split(","))
        even, dimensions, transposed, last, kind = (
            head // 36,
            head // 12 % 3 + 1,
            head // 6 % 2,
            head // 3 % 2,
            head % 3,
        )
        step = 1 if even else dimensions
        size, window, stride, padding = (
            tuple(rest[i * step : (i + 1) * step]) * (dimensions // step) for i in range(4)
        )
        shape = Convolution(
            images, inputs, outputs, size, window, stride, padding, groups, bool(transposed)
        )
        found.append((shape, TYPES[kind], bool(last)))
    return found


def row(shape: Convolution, kind: str, last: bool, bytes_of: dict[str, int]) -> str:
    """A line of the table; csrc/sim/libraries/cudnn/measured.cpp names its columns."""
    dimensions = len(shape.size)
    sizes = (list(shape.size), *map(shape.each, (shape.window, shape.stride, shape.padding)))
    even = all(len(set(each)) == 1 for each in sizes)
    head = TYPES.index(kind) + 3 * last + 6 * shape.transposed + 12 * (dimensions - 1) + 36 * even
    numbers = [head, shape.images, shape.inputs, shape.outputs, shape.groups]
    for each in sizes:
        numbers += each[:1] if even else each
    for name in PASSES:
        upper, lower = divmod(bytes_of[name], 1 << 31)
        numbers += [-upper, lower] if upper else [lower]
    return f"{','.join(map(str, numbers))},"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--table", action="store_true", help="measure the simulator's cases")
    parser.add_argument("--budget", type=float, default=600, help="seconds")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES)
    parser.add_argument("--smoke", action="store_true", help="every fiftieth case")
    options = parser.parse_args(argv)
    use_allocator("native", simulated=gpu_count() == 0, gpu="h100")
    import torch

    end = time.monotonic() + options.budget
    torch.zeros(1, device="cuda")
    chosen = read_table(TABLE) if options.table else list(cases(options.types))
    chosen = chosen[:: 50 if options.smoke else 1]
    records: list[dict[str, Any]] = []
    lines = []
    free = torch.cuda.mem_get_info()[0]
    for shape, kind, last in chosen:
        if time.monotonic() > end:
            print(f"out of time after {len(records)} of {len(chosen)}", file=sys.stderr)
            break
        record = {**asdict(shape), "type": kind, "channels_last": last}
        try:
            record["bytes"] = measure(shape, kind, last)
            lines.append(row(shape, kind, last, record["bytes"]))
        except RuntimeError as error:
            record["problem"] = str(error).splitlines()[0]
        records.append(record)
    if options.output:
        stored = ",\n".join(json.dumps(record) for record in records)
        options.output.write_text(f"[\n{stored}\n]\n")
    if options.table and len(lines) == len(chosen) and not options.smoke:
        TABLE.write_text("".join(f"{line}\n" for line in sorted(lines)))
    torch.cuda.empty_cache()
    print(f"libraries took {(free - torch.cuda.mem_get_info()[0]) / 2**20:.0f} MiB")
    if options.compare:
        return compare(records, json.loads(options.compare.read_text()))
    print(f"{len(records)} cases, {sum('problem' in r for r in records)} problems")
    return 0


def tensor_bytes(record: dict[str, Any]) -> int:
    """The approximate bytes of the images and of the results."""
    element = 4 if record["type"] == "float32" else 2
    places = math.prod(record["size"])
    results = places * record["stride"] ** (
        len(record["size"]) * (1 if record["transposed"] else -1)
    )
    each = record["inputs"] * places + record["outputs"] * results
    return int(record["images"] * each * element)


def is_near(one: dict[str, Any], other: dict[str, Any], name: str) -> bool:
    difference = abs(one["bytes"][name] - other["bytes"][name])
    return bool(difference <= max(tensor_bytes(one) / 10, 1 << 20))


def compare(simulated: list[dict[str, Any]], stored: list[dict[str, Any]]) -> int:
    """Shows pairs that are not near. Fails if fewer than four of five are near."""

    def key(record: dict[str, Any]) -> str:
        return json.dumps({k: v for k, v in record.items() if k not in ("bytes", "problem")})

    there = {key(record): record for record in stored if "bytes" in record}
    pairs = [(one, there[key(one)]) for one in simulated if key(one) in there and "bytes" in one]
    table = Table("case", *PASSES, title="MiB of workspace: simulated / GPU")
    near = 0
    for one, other in pairs:
        are = [is_near(one, other, name) for name in PASSES]
        near += sum(are)
        if not all(are):
            sizes = [(one["bytes"][p] / 2**20, other["bytes"][p] / 2**20) for p in PASSES]
            table.add_row(key(one), *(f"{here:.1f} / {gpu:.1f}" for here, gpu in sizes))
    Console().print(table)
    total = [sum(r["bytes"][p] for r in side for p in PASSES) for side in zip(*pairs, strict=True)]
    print(f"{near} of {len(PASSES) * len(pairs)} are near; all of them: {total[0] / total[1]:.3f}")
    return int(near < 0.8 * len(PASSES) * len(pairs))


if __name__ == "__main__":
    sys.exit(main())
