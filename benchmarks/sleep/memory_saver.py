"""The same memory sleeps with torch_memory_saver under the native allocator, and with ferro_alloc.

    python -m benchmarks.sleep.memory_saver [--gib 8] [--turns 3] [--smoke]

Each side runs in a separate process. Prints one line of JSON: GiB/s of `pause()` and `resume()`
with a backup on the host, GiB/s of `sleep()` and `wake()`, and the ratio of the two. The first turn
of each allocates the host memory. Needs the package torch_memory_saver. Only with --smoke it runs
without the package, and then ferro_alloc alone. Without a GPU it runs on the simulated one, whose
times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.harness.processes import OURS, use_allocator
from tools.gpu import gpu_count

GIB = 1 << 30


def timed(work: Callable[[], object]) -> float:
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def turns(
    region: AbstractContextManager[object],
    pause: Callable[[], object],
    resume: Callable[[], object],
    size: int,
    count: int,
) -> dict[str, Any]:
    """With eight tensors of `size` bytes together."""
    import torch

    with region:
        tensors = [torch.full((size // 32,), n, dtype=torch.int32, device="cuda") for n in range(8)]
    out, back = [], []
    for _ in range(1 + count):
        out.append(round(size / GIB / timed(pause), 2))
        back.append(round(size / GIB / timed(resume), 2))
    kept = all(bool((tensor == n).all()) for n, tensor in enumerate(tensors))
    return {"out": out, "back": back, "the same bytes": kept}


def run(side: str, size: int, count: int) -> dict[str, Any]:
    use_allocator(side if side == OURS else "native", simulated=gpu_count() == 0, values=True)
    if side == OURS:
        import ferro_alloc

        return turns(
            ferro_alloc.tag("weights"),
            lambda: ferro_alloc.sleep("weights"),
            lambda: ferro_alloc.wake("weights"),
            size,
            count,
        )
    from torch_memory_saver import torch_memory_saver  # type: ignore[import-not-found]

    torch_memory_saver.hook_mode = "torch"
    region = torch_memory_saver.region(tag="weights", enable_cpu_backup=True)
    return turns(
        region,
        lambda: torch_memory_saver.pause("weights"),
        lambda: torch_memory_saver.resume("weights"),
        size,
        count,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--gib", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="little memory: does it run?")
    parser.add_argument("--output", type=Path, help="where the line goes too")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        size = GIB // 64 if given.smoke else given.gib * GIB
        print(json.dumps(run(given.side, size, 1 if given.smoke else given.turns)))
        return
    result: dict[str, Any] = {}
    has_package = not given.smoke or find_spec("torch_memory_saver") is not None
    for side in ("torch_memory_saver", OURS) if has_package else (OURS,):
        words = [sys.executable, "-m", "benchmarks.sleep.memory_saver", "--side", side]
        words += ["--gib", str(given.gib), "--turns", str(given.turns)]
        words += ["--smoke"] * given.smoke
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        result[side] = json.loads(done.stdout.splitlines()[-1])
    for way in ("out", "back") if has_package else ():
        ours, theirs = (result[side][way][1:] for side in (OURS, "torch_memory_saver"))
        result[f"times as fast, {way}"] = round(sum(ours) / sum(theirs), 1)
    print(json.dumps(result))
    if given.output is not None:
        given.output.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
