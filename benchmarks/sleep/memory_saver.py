"""The same memory sleeps with torch_memory_saver under the native allocator, and with ferro_alloc.

    python -m benchmarks.sleep.memory_saver [--gib 8] [--turns 3]

Each side runs in a separate process. Prints one line of JSON: GiB/s of `pause()` and `resume()`
with a backup on the host, GiB/s of `sleep()` and `wake()`, and the ratio of the two. The first turn
of each allocates the host memory. Needs the package torch_memory_saver.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

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
    gib: int,
    count: int,
) -> dict[str, Any]:
    import torch

    with region:
        tensors = [torch.full((GIB // 4,), n, dtype=torch.int32, device="cuda") for n in range(gib)]
    out, back = [], []
    for _ in range(1 + count):
        out.append(round(gib / timed(pause), 2))
        back.append(round(gib / timed(resume), 2))
    kept = all(bool((tensor == n).all()) for n, tensor in enumerate(tensors))
    return {"out": out, "back": back, "the same bytes": kept}


def run(side: str, gib: int, count: int) -> dict[str, Any]:
    if side == "ferro_alloc":
        import ferro_alloc

        ferro_alloc.install()
        return turns(
            ferro_alloc.tag("weights"),
            lambda: ferro_alloc.sleep("weights"),
            lambda: ferro_alloc.wake("weights"),
            gib,
            count,
        )
    from torch_memory_saver import torch_memory_saver  # type: ignore[import-not-found]

    torch_memory_saver.hook_mode = "torch"
    region = torch_memory_saver.region(tag="weights", enable_cpu_backup=True)
    return turns(
        region,
        lambda: torch_memory_saver.pause("weights"),
        lambda: torch_memory_saver.resume("weights"),
        gib,
        count,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--gib", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--side")
    given = parser.parse_args()
    if given.side:
        print(json.dumps(run(given.side, given.gib, given.turns)))
        return
    result: dict[str, Any] = {}
    for side in ("torch_memory_saver", "ferro_alloc"):
        words = [sys.executable, "-m", "benchmarks.sleep.memory_saver", "--side", side]
        words += ["--gib", str(given.gib), "--turns", str(given.turns)]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        result[side] = json.loads(done.stdout.splitlines()[-1])
    for way in ("out", "back"):
        ours, theirs = (result[side][way][1:] for side in ("ferro_alloc", "torch_memory_saver"))
        result[f"times as fast, {way}"] = round(sum(ours) / sum(theirs), 1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
