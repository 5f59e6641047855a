"""The demo: a transformer trained under three allocators, side by side.

PyTorch's native allocator, its expandable segments, and ferro_alloc each get a process that trains
the same model on the same varying batches, captures a training step into a CUDA graph and replays
it, and runs a module through torch.compile. A table and a picture compare them.

On a GPU all losses must be equal bit for bit; otherwise the exit status is 1. Without a GPU the
demo runs on the simulated GPU, where memory behaves as on a card but nothing is computed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.demo.child import ALLOCATORS, Result
from benchmarks.harness.processes import ROOT
from tools.gpu import gpu_count

OUTPUT = ROOT / "demo-out"
GIB = 1 << 30
MIB = 1 << 20
STEPS_ON_GPU = 200
STEPS_SIMULATED = 120
SIMULATED_NOTE = (
    "No GPU on this machine: this is the simulated GPU. Memory figures follow a real card; "
    "losses are not computed and times are not those of a GPU."
)
PHASES = {"train": "training", "graph": "CUDA graph", "compile": "torch.compile"}


class ChildError(Exception):
    """A process of the demo ended with an error; the text says where its output is."""


def run_child(allocator: str, steps: int, simulated: bool, progress: Progress) -> Result:
    """Runs the workload under one allocator and follows its progress."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "result.json"
        command = [sys.executable, "-m", "benchmarks.demo.child", "--allocator", allocator]
        command += ["--steps", str(steps), "--result", str(target)]
        command += ["--simulated"] if simulated else []
        log = OUTPUT / f"{allocator}.log"
        environ = {key: value for key, value in os.environ.items() if "ALLOC_CONF" not in key}
        # Compiled kernels are the same under each allocator: the first child compiles them.
        environ["TORCHINDUCTOR_CACHE_DIR"] = str(OUTPUT / "inductor")
        task = progress.add_task(f"{allocator}: starting", total=None)
        with log.open("w") as errors:
            child = subprocess.Popen(
                command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            assert child.stdout is not None
            for line in child.stdout:
                if line.startswith("{"):
                    event = json.loads(line)
                    label = f"{allocator}: {PHASES[event['phase']]}"
                    progress.update(
                        task, description=label, completed=event["done"], total=event["total"]
                    )
            code = child.wait()
        progress.update(task, description=f"{allocator}: {'done' if code == 0 else 'failed'}")
        if code != 0:
            tail = log.read_text(errors="replace").strip().splitlines()[-12:]
            raise ChildError(f"{allocator} ended with {code}; from {log}:\n" + "\n".join(tail))
        return Result(**json.loads(target.read_text()))


def differences(results: Sequence[Result]) -> list[str]:
    """Where a result differs in a single bit from that of the first allocator."""
    first, found = results[0], []
    for other in results[1:]:
        for step, (a, b) in enumerate(zip(first.losses, other.losses, strict=True)):
            if a != b:
                found.append(f"{other.allocator}: the loss of step {step} is {b}, not {a}")
                break
        if other.graph_loss != first.graph_loss:
            found.append(f"{other.allocator}: the loss of the replayed graph differs")
        if other.compiled_sum != first.compiled_sum:
            found.append(f"{other.allocator}: the result of the compiled module differs")
    return found


def comparison(results: Sequence[Result], simulated: bool) -> Table:
    table = Table(title=f"{results[0].parameters / 1e6:.0f} M parameters on {results[0].device}")
    table.add_column("")
    for result in results:
        table.add_column(result.allocator, justify="right")

    def row(name: str, value: Callable[[Result], Any]) -> None:
        table.add_row(name, *(str(value(result)) for result in results))

    row("peak allocated, GiB", lambda r: f"{r.peak_allocated / GIB:.3f}")
    row("peak reserved, GiB", lambda r: f"{r.peak_reserved / GIB:.3f}")
    row("reserved / allocated", lambda r: f"{r.peak_reserved / max(1, r.peak_allocated):.3f}")
    row("used on the device, GiB", lambda r: f"{r.device_used / GIB:.3f}")
    row("captured step adds, MiB", lambda r: f"{r.graph_bytes / MIB:,.0f}")

    def time_of(*seconds: float) -> str:
        # Without kernels the time of a step is that of the simulator's own copies.
        return "n/a" if simulated else " to ".join(f"{each * 1e3:.2f}" for each in seconds)

    row("training step, ms: median", lambda r: time_of(r.step_seconds))
    row("its quartiles", lambda r: time_of(*r.step_quartiles))
    row("replayed step, ms", lambda r: time_of(r.graph_replay_seconds))
    if not simulated:
        row("first loss", lambda r: f"{float.fromhex(r.losses[0]):.6f}")
        row("last loss", lambda r: f"{float.fromhex(r.losses[-1]):.6f}")
    table.add_section()
    for name in dict.fromkeys(name for result in results for name in result.driver_calls):
        table.add_row(label(name), *(calls_of(result, name) for result in results))
    return table


def label(name: str) -> str:
    names = {"num_device_alloc": "driver allocations", "num_device_free": "driver releases"}
    return names.get(name, name) + " (2nd half)"


def calls_of(result: Result, name: str) -> str:
    if name not in result.driver_calls:
        return "n/a"
    return f"{result.driver_calls[name]:,} ({result.driver_calls_late.get(name, 0):,})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, help="training steps under each allocator")
    parser.add_argument("--only", nargs="+", choices=ALLOCATORS, default=list(ALLOCATORS))
    parser.add_argument("--picture", type=Path, default=OUTPUT / "demo.png")
    options = parser.parse_args()
    simulated = gpu_count() == 0
    steps = options.steps or (STEPS_SIMULATED if simulated else STEPS_ON_GPU)
    OUTPUT.mkdir(exist_ok=True)
    console = Console(highlight=False)
    if simulated:
        print(SIMULATED_NOTE, flush=True)
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn())
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            results = [run_child(name, steps, simulated, progress) for name in options.only]
    except ChildError as error:
        print(error, file=sys.stderr)
        return 1

    from benchmarks.demo.picture import draw

    console.print(comparison(results, simulated))
    where = "simulated GPU" if simulated else results[0].device
    draw(results, f"Training with varying lengths, {where}", options.picture)
    (OUTPUT / "results.json").write_text(json.dumps([vars(result) for result in results]))
    print(f"picture: {options.picture}")
    if simulated:
        print(SIMULATED_NOTE)
        return 0
    wrong = differences(results)
    for line in wrong:
        print(line)
    if not wrong:
        print(
            f"losses of all {steps} steps, of the graph and of the compiled module: bitwise equal"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
