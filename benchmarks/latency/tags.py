"""The cost of a tag: one allocation and its release under ferro_alloc, and entering a tag.

"never" is a process that has used no tag, "before" one that used a tag earlier, and "within" one
whose requests have a tag. Each is a separate process, because counting by tag never ends. They take
turns, in another order each round. Times are processor times, which other programs change less; on
the simulated GPU they include only the host's part.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median

from benchmarks.harness.processes import OURS, ROOT, use_allocator
from tools.gpu import gpu_count

CASES = ("never", "before", "within")
ROUNDS, PAIRS = 15, 200_000


def measure(case: str, pairs: int) -> tuple[float, float]:
    """Nanoseconds of a pair, and of entering and leaving a tag."""
    use_allocator(OURS, simulated=gpu_count() == 0)
    import torch

    import ferro_alloc

    torch.empty(1000, device="cuda")
    if case != "never":
        with ferro_alloc.tag("weights"):
            weights = torch.empty(1000, device="cuda")
    with ferro_alloc.tag("cache") if case == "within" else nullcontext():
        for _ in range(1000):
            torch.empty(1000, device="cuda")
        started = time.process_time_ns()
        for _ in range(pairs):
            torch.empty(1000, device="cuda")
        spent = time.process_time_ns() - started
    if case != "never":
        assert ferro_alloc.status().devices[0].tags == {"weights": weights.nbytes + 96}
    started = time.process_time_ns()
    for _ in range(pairs // 10):
        with ferro_alloc.tag("cache"):
            pass
    entering = time.process_time_ns() - started
    return spent / pairs, entering / (pairs // 10)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--smoke", action="store_true", help="moments only: does it run?")
    parser.add_argument("--output", type=Path, help="where the nanoseconds go, as JSON")
    parser.add_argument("--child", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    pairs = 1_000 if options.smoke else PAIRS
    if options.child is not None:
        print(json.dumps(measure(options.child, pairs)))
        return 0
    found: Mapping[str, list[float]] = {name: [] for name in (*CASES, "entering")}
    for _ in range(1 if options.smoke else options.rounds):
        for case in random.sample(CASES, len(CASES)):
            words = ["-m", "benchmarks.latency.tags", "--child", case]
            words += ["--smoke"] if options.smoke else []
            done = subprocess.run(
                [sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
            )
            pair, entering = json.loads(done.stdout)
            found[case].append(pair)
            found["entering"] += [entering] if case == "within" else []
    for name, runs in found.items():
        print(f"{name:10} {median(runs):7.0f} ns, the median of {len(runs)}; least {min(runs):.0f}")
    if options.output is not None:
        options.output.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
