"""One part of the demo: the whole workload under one allocator, in a separate process.

Prints progress as one JSON object a line, and writes the result as JSON to the file that the
command line names. The demo starts it three times.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness.costs import allocator_devices, driver_calls

if TYPE_CHECKING:
    import torch

    from benchmarks.models.llama import Llama

ALLOCATORS = ("native", "expandable", "ferro_alloc")
SEED = 20


@dataclass
class Result:
    """The result of one allocator. Bytes and seconds; losses in the hexadecimal form of floats."""

    allocator: str
    device: str = ""
    parameters: int = 0
    losses: list[str] = field(default_factory=list)
    step_seconds: float = 0.0
    """The median. Steps differ in shape and processes in speed, so it needs the quartiles."""
    step_quartiles: list[float] = field(default_factory=list)
    """The lower and the upper quartile."""
    step_peak_allocated: list[int] = field(default_factory=list)
    step_peak_reserved: list[int] = field(default_factory=list)
    peak_allocated: int = 0
    peak_reserved: int = 0
    device_used: int = 0
    driver_calls: dict[str, int] = field(default_factory=dict)
    driver_calls_late: dict[str, int] = field(default_factory=dict)
    """Of only the second half of the training steps."""
    graph_loss: str = ""
    graph_replay_seconds: float = 0.0
    graph_bytes: int = 0
    """Growth of the reserved memory by capturing the training step."""
    compiled_sum: str = ""
    report: list[dict[str, object]] = field(default_factory=list)
    """The status of ferro_alloc's devices."""


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


def lengths(steps: int, longest: int) -> Iterator[tuple[int, int]]:
    """Batch size and sequence length of each step: as varied as packed text, the same each run."""
    rng = random.Random(SEED)
    for _ in range(steps):
        length = int(min(longest, max(64, rng.lognormvariate(6.2, 0.6))))
        batch = max(1, min(16, rng.randint(3_000, 9_000) // length))
        yield batch, length


def make_tokens(batch: int, length: int, step: int, vocabulary: int) -> torch.Tensor:
    """Text with a structure to learn: each token follows from the one before, with some noise."""
    import torch

    generator = torch.Generator().manual_seed(SEED * 1_000_003 + step)
    start = torch.randint(0, 997, (batch, 1), generator=generator)
    noise = torch.rand((batch, length), generator=generator) < 0.05
    steps = torch.where(noise, torch.randint(0, 997, (batch, length), generator=generator), 1)
    return (start + steps.cumsum(1)) % 997 % vocabulary


class Workload:
    def __init__(self, result: Result, simulated: bool) -> None:
        import torch

        from benchmarks.models.llama import Llama, ModelShape

        self.result = result
        self.simulated = simulated
        self.shape = ModelShape()
        torch.manual_seed(SEED)
        torch.use_deterministic_algorithms(True, warn_only=simulated)
        # Filling uninitialised memory costs time that training does not normally spend.
        torch.utils.deterministic.fill_uninitialized_memory = False
        self.model: Llama = Llama(self.shape).cuda()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=3e-4, capturable=True, foreach=True
        )
        result.device = torch.cuda.get_device_name()
        result.parameters = sum(p.numel() for p in self.model.parameters())

    def train(self, steps: int) -> None:
        import torch

        seconds = []
        for step, (batch, length) in enumerate(lengths(steps, self.shape.longest)):
            if step == steps // 2:
                self.result.driver_calls_late = driver_calls(self.result.allocator, self.simulated)
            tokens = make_tokens(batch, length, step, self.shape.vocabulary)
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
            started = time.perf_counter()
            loss = self.forward(tokens.pin_memory().cuda(non_blocking=True))
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.result.losses.append(loss.item().hex())
            seconds.append(time.perf_counter() - started)
            del loss
            self.result.step_peak_allocated.append(torch.cuda.max_memory_allocated())
            self.result.step_peak_reserved.append(torch.cuda.max_memory_reserved())
            say(phase="train", done=step + 1, total=steps)
        lower, median, upper = np.quantile(seconds, (0.25, 0.5, 0.75)).tolist()
        self.result.step_seconds = median
        self.result.step_quartiles = [lower, upper]
        self.result.peak_allocated = max(self.result.step_peak_allocated)
        self.result.peak_reserved = max(self.result.step_peak_reserved)
        free, total = torch.cuda.mem_get_info()
        self.result.device_used = total - free
        self.result.driver_calls = driver_calls(self.result.allocator, self.simulated)
        before = self.result.driver_calls_late
        self.result.driver_calls_late = {
            name: count - before.get(name, 0) for name, count in self.result.driver_calls.items()
        }

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        import torch

        with torch.autocast("cuda", dtype=torch.bfloat16):
            return self.model.loss(tokens)

    def capture(self, replays: int) -> None:
        """A whole training step as a CUDA graph."""
        import torch

        tokens = make_tokens(4, 512, 0, self.shape.vocabulary).cuda()

        def step() -> torch.Tensor:
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.forward(tokens)
            loss.backward()
            self.optimizer.step()
            return loss.detach()

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
        self.result.graph_bytes = torch.cuda.memory_reserved() - before
        say(phase="graph", done=0, total=replays)
        seconds = []
        for replay in range(replays):
            torch.cuda.synchronize()
            started = time.perf_counter()
            graph.replay()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
            say(phase="graph", done=replay + 1, total=replays)
        self.result.graph_loss = loss.item().hex()
        self.result.graph_replay_seconds = statistics.median(seconds)
        del loss
        graph.reset()

    def compile(self, calls: int) -> None:
        """One feed-forward block through torch.compile and its trees of CUDA graphs."""
        import torch

        say(phase="compile", done=0, total=calls)
        block = self.model.layers[0].get_submodule("feed_forward")
        compiled = torch.compile(block, mode="reduce-overhead")
        x = torch.linspace(-1, 1, 512 * self.shape.width, device="cuda").view(1, 512, -1)
        total = torch.zeros((), device="cuda")
        for call in range(calls):
            torch.compiler.cudagraph_mark_step_begin()
            with torch.no_grad():
                total += compiled(x * (call + 1)).float().sum()
            say(phase="compile", done=call + 1, total=calls)
        self.result.compiled_sum = total.item().hex()


def run(allocator: str, steps: int, simulated: bool) -> Result:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    if allocator == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if simulated:
        from ferro_alloc import sim

        sim.activate(gpu="h100")
    if allocator == "ferro_alloc":
        import ferro_alloc

        ferro_alloc.install()
    result = Result(allocator)
    workload = Workload(result, simulated)
    workload.train(steps)
    workload.capture(replays=5)
    workload.compile(calls=6)
    result.report = [asdict(device) for device in allocator_devices(allocator)]
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocator", choices=ALLOCATORS, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    result = run(options.allocator, options.steps, options.simulated)
    options.result.write_text(json.dumps(asdict(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
