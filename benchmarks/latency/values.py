"""The cost of values on the simulated GPU: the processor time of programs with them and without.

Three programs: the sum of 122,880 elements in bfloat16, whose result the host never reads; a
training step of a model of 0.17 B parameters; a round of speculative decoding with a draft model of
320 columns and one of 1,024. A process with values and one without take turns of some 20 ms,
because the speed of a machine changes from second to second. The ratio of a pair of processes is
the median over their turns, and the result the median over the pairs. Threads that compute values
count too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.harness.processes import Child, say, use_allocator, wait_for_parent
from benchmarks.harness.records import print_table

if TYPE_CHECKING:
    from torch import Tensor

CASES = ("without", "with")
ROUNDS = 5
TURNS = 50
WARM_UP = 5
AT_ONCE = {"operator": 5000, "training": 2, "decoding": 2}
"""Runs of a program in one turn."""


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


def serve(case: str, name: str, repeats: int) -> None:
    """The program's process: for each turn of the parent, prints the milliseconds of one run."""
    use_allocator("native", simulated=True, gpu="h100", values=case == "with")
    # PyTorch parses it before each matrix product, which takes longer than most operators.
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    run = PROGRAMS[name]()
    while wait_for_parent():
        started = time.process_time()
        for _ in range(repeats):
            run()
        say(ms=(time.process_time() - started) * 1e3 / repeats)


def take_turns(name: str, turns: int, repeats: int) -> dict[str, list[float]]:
    """The times of a process without values and of one with them, which take turns."""
    found: dict[str, list[float]] = {case: [] for case in CASES}
    with contextlib.ExitStack() as stack:
        children = {
            case: stack.enter_context(
                Child("benchmarks.latency.values", ["--child", case, name, str(repeats)])
            )
            for case in CASES
        }
        for turn in range(WARM_UP + turns):
            for case in CASES if turn % 2 == 0 else CASES[::-1]:
                children[case].read()
                children[case].go_on()
                ms = children[case].read()["ms"]
                if turn >= WARM_UP:
                    found[case].append(ms)
        for child in children.values():
            child.read()
            child.go_on(stop=True)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--smoke", action="store_true", help="moments only: does it run?")
    parser.add_argument("--output", type=Path, help="where the milliseconds go, as JSON")
    parser.add_argument(
        "--child", nargs=3, metavar=("CASE", "PROGRAM", "REPEATS"), help=argparse.SUPPRESS
    )
    options = parser.parse_args(argv)
    if options.child is not None:
        case, name, repeats = options.child
        serve(case, name, int(repeats))
        return 0
    rounds, turns = (1, 1) if options.smoke else (options.rounds, TURNS)
    found: dict[str, list[dict[str, list[float]]]] = {
        name: [
            take_turns(name, turns, 1 if options.smoke else AT_ONCE[name]) for _ in range(rounds)
        ]
        for name in PROGRAMS
    }
    lines = []
    for name, pairs in found.items():
        without, with_values = (median(t for pair in pairs for t in pair[case]) for case in CASES)
        ratios = [
            median(b / a for a, b in zip(*(pair[case] for case in CASES), strict=True))
            for pair in pairs
        ]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        lines.append(
            (name, f"{without:.4f}", f"{with_values:.4f}", f"{median(ratios):.2f}", spread)
        )
    head = ("program", "without values", "with", "ratio", "of pairs")
    print_table("processor time, ms", head, lines)
    if options.output is not None:
        options.output.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
