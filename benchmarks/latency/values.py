"""The cost of values on the simulated GPU: the processor time of programs with them and without.

Three programs: the sum of 122,880 elements in bfloat16, whose result the host never reads; a
training step of a model of 0.17 B parameters; a round of speculative decoding with a draft model of
320 columns and one of 1,024. Those with values and those without are separate processes, which take
turns. A time is the lower quartile of a process, the result the median of the processes. Threads
that compute values count too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING

from benchmarks.harness.processes import ROOT, use_allocator
from benchmarks.harness.records import print_table

if TYPE_CHECKING:
    from torch import Tensor

CASES = ("without", "with")
ROUNDS = 5
REPEATS = {"operator": 100, "training": 40, "decoding": 30}
AT_ONCE = {"operator": 200, "training": 1, "decoding": 1}
"""Runs of a program that one time includes."""


def operator() -> Callable[[], None]:
    import torch

    x = torch.ones(122_880, dtype=torch.bfloat16, device="cuda")

    def run() -> None:
        x.sum()

    return run


def training() -> Callable[[], None]:
    import torch
    import torch.nn.functional as F

    from benchmarks.models.llama import ModelShape
    from benchmarks.models.workloads import make_llama

    model = make_llama(ModelShape())
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def run() -> None:
        tokens = torch.randint(32_000, (4, 512), device="cuda")
        loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def decoding() -> Callable[[], None]:
    """The draft model proposes four tokens, of which the other one accepts a prefix."""
    import torch

    from benchmarks.models.llama import ModelShape
    from benchmarks.models.workloads import make_llama

    draft = make_llama(ModelShape(width=320, layers=4, heads=5, hidden=880))
    target = make_llama(ModelShape())
    prompt = torch.randint(32_000, (1, 64), device="cuda")

    def run() -> None:
        tokens: Tensor = prompt
        with torch.no_grad():
            for _ in range(4):
                tokens = torch.cat([tokens, draft(tokens)[:, -1:].argmax(-1)], dim=1)
            wanted = target(tokens)[:, -5:].argmax(-1)
            accepted = int((wanted[:, :4] == tokens[:, -4:]).cumprod(1).sum())
            torch.cat([tokens[:, : 64 + accepted], wanted[:, accepted : accepted + 1]], dim=1)

    return run


PROGRAMS = {"operator": operator, "training": training, "decoding": decoding}


def measure(case: str, name: str, repeats: int) -> float:
    """Milliseconds of one run of the program."""
    use_allocator("native", simulated=True, gpu="h100", values=case == "with")
    # PyTorch parses it before each matrix product, which takes longer than most operators.
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    run = PROGRAMS[name]()
    times = []
    for _ in range(repeats + 3):
        started = time.process_time()
        for _ in range(AT_ONCE[name]):
            run()
        times.append((time.process_time() - started) * 1e3 / AT_ONCE[name])
    return quantiles(times[3:], n=4)[0]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--smoke", action="store_true", help="moments only: does it run?")
    parser.add_argument("--output", type=Path, help="where the milliseconds go, as JSON")
    parser.add_argument("--child", nargs=2, metavar=("CASE", "PROGRAM"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child is not None:
        case, name = options.child
        print(json.dumps(measure(case, name, 2 if options.smoke else REPEATS[name])))
        return 0
    found: dict[str, dict[str, list[float]]] = {
        name: {case: [] for case in CASES} for name in PROGRAMS
    }
    for name, times in found.items():
        for number in range(1 if options.smoke else options.rounds):
            for case in CASES if number % 2 == 0 else CASES[::-1]:
                words = ["-m", "benchmarks.latency.values", "--child", case, name]
                words += ["--smoke"] if options.smoke else []
                done = subprocess.run(
                    [sys.executable, *words],
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                times[case].append(json.loads(done.stdout.splitlines()[-1]))
    lines = []
    for name, times in found.items():
        without, with_values = (median(times[case]) for case in CASES)
        lines.append((name, f"{without:.4f}", f"{with_values:.4f}", f"{with_values / without:.2f}"))
    print_table("processor time, ms", ("program", "without values", "with", "ratio"), lines)
    if options.output is not None:
        options.output.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
