"""One workload under one allocator, in this process, in rounds.

Says one object a round with the times of its steps, and a last one with the peaks, the losses and
a checksum of what was computed. Waits for its parent before every round when there are several.
On a simulated GPU with a clock the times are that clock's.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.processes import ALLOCATORS, say, use_allocator, wait_for_parent

if TYPE_CHECKING:
    from torch import Tensor

    from benchmarks.workloads import Workload


class Recorder:
    """The callback of a workload: times steps, keeps losses, and pauses between rounds."""

    def __init__(self, steps: int, rounds: int, losses: bool, now: Callable[[], float]) -> None:
        self.steps_per_round = steps // rounds
        self.rounds = rounds
        self.keep_losses = losses
        self.now = now
        self.losses: list[str] = []
        self.seconds: list[float] = []
        self.round = 0
        self._started = 0.0

    def begin(self) -> None:
        if self.rounds > 1:
            wait_for_parent(round=self.round)
        self._started = self.now()

    def __call__(self, step: int, loss: Tensor) -> None:
        import torch

        torch.cuda.synchronize()
        self.seconds.append(self.now() - self._started)
        if self.keep_losses:
            self.losses.append(loss.item().hex())
        if (step + 1) % self.steps_per_round == 0 and self.round < self.rounds:
            say(round=self.round, seconds=self.seconds)
            self.round += 1
            self.seconds = []
            if self.round < self.rounds:
                self.begin()
        self._started = self.now()


def checksum(tensors: Sequence[Tensor]) -> str:
    """Of the bits, so that a difference anywhere shows."""
    import torch

    digest = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def default_steps(workload: Workload) -> int:
    return int(inspect.signature(workload.run).parameters["steps"].default)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    simulated = options.simulated or options.clock
    mode = "clock" if options.clock else "eager"
    use_allocator(options.allocator, simulated, mode=mode)
    import torch

    from benchmarks.workloads import WORKLOADS
    from ferro_alloc import sim

    if options.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=simulated)
        # Filling what is uninitialised costs time that training does not normally spend.
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.backends.cudnn.benchmark = False
    workload = WORKLOADS[options.workload]
    sizes = dict(workload.smoke if options.smoke else workload.sizes)
    if options.steps is not None:
        sizes["steps"] = options.steps
    steps = sizes["steps"] if "steps" in sizes else default_steps(workload)
    now = (lambda: sim.clock().host) if options.clock else time.perf_counter
    recorder = Recorder(steps, options.rounds, options.losses, now)
    torch.cuda.init()
    recorder.begin()
    results = workload.run(recorder, **sizes)
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    stats = torch.cuda.memory_stats()
    return {
        "allocator": options.allocator,
        "workload": options.workload,
        "device": torch.cuda.get_device_name(),
        "steps": steps,
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "peak_active": stats.get("active_bytes.all.peak", 0),
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "reserved": torch.cuda.memory_reserved(),
        "device_used": total - free,
        "losses": recorder.losses,
        "checksum": checksum(results) if options.losses else "",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocator", choices=ALLOCATORS, required=True)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--clock", action="store_true", help="simulated, with a clock")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--losses", action="store_true", help="keep losses and a checksum")
    parser.add_argument("--deterministic", action="store_true")
    print(json.dumps(measure(parser.parse_args())), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
