"""One workload under one allocator, in this process, once or repeatedly.

Prints one object per pass with the times of its steps, and a last one with the peaks, the costs,
the losses and a checksum of the first pass. With `--in-turns` it waits for its parent before every
pass, until the parent stops it. On a simulated GPU with a clock the times are those of the clock.
With `--limit` running out of memory is a result: the last object has the pass, the step and the
reason.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.harness.costs import Costs, after_warm_up, allocator_devices, costs_so_far
from benchmarks.harness.processes import ALLOCATORS, say, use_allocator, wait_for_parent

if TYPE_CHECKING:
    from torch import Tensor

# The first of so many parts is warm-up, whose costs do not count.
WARM_UP = 4


class Recorder:
    """The callback of a workload: times the steps of each pass, and keeps the costs and losses of
    the first pass."""

    def __init__(self, losses: bool, costs: Callable[[], Costs], now: Callable[[], float]) -> None:
        self.keep_losses = losses
        self.costs: list[Costs] = []
        self.losses: list[str] = []
        self.seconds: list[float] = []
        self.passes = 0
        self._read_costs = costs
        self._now = now
        self._started = 0.0

    def begin(self) -> None:
        self.seconds = []
        self._started = self._now()

    def __call__(self, step: int, loss: Tensor) -> None:
        import torch

        torch.cuda.synchronize()
        self.seconds.append(self._now() - self._started)
        if self.passes == 0:
            self.costs.append(self._read_costs())
            if self.keep_losses:
                self.losses.append(loss.item().hex())
        self._started = self._now()

    def end(self) -> None:
        self.passes += 1


def checksum(tensors: Sequence[Tensor]) -> str:
    """A checksum of all bits, so that any difference shows."""
    import torch

    digest = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def set_limit(limit: int) -> None:
    """Limits the bytes that the allocator of this process may reserve."""
    import torch

    total = torch.cuda.mem_get_info()[1]
    # Half a byte more, because the allocators round the product down.
    torch.cuda.set_per_process_memory_fraction((limit + 0.5) / total)


def verdict(error: Exception) -> str:
    """ferro_alloc's verdict of a failure, without PyTorch's own sentence."""
    return str(error).partition("verdict = ")[2]


def leave_out_cudnn_attention() -> None:
    """Disables cuDNN's attention, which plans again for every length, longer than the rest of a
    step."""
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    simulated = options.simulated or options.clock
    mode = "clock" if options.clock else "eager"
    use_allocator(options.allocator, simulated, mode=mode)
    import torch

    from benchmarks.models.workloads import WORKLOADS
    from ferro_alloc import sim

    leave_out_cudnn_attention()
    if options.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=simulated)
        # Filling uninitialised memory costs time that training does not normally spend.
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.backends.cudnn.benchmark = False
    workload = WORKLOADS[options.workload]
    sizes = dict(workload.smoke if options.smoke else workload.sizes)
    if options.steps is not None:
        sizes["steps"] = options.steps
    costs = partial(costs_so_far, options.allocator, simulated)
    now = (lambda: sim.clock().host) if options.clock else time.perf_counter
    recorder = Recorder(options.losses, costs, now)
    torch.cuda.init()
    what = {
        "allocator": options.allocator,
        "workload": options.workload,
        "device": torch.cuda.get_device_name(),
    }
    if options.limit is not None:
        set_limit(options.limit)
    found: dict[str, Any] = {}
    try:
        while wait_for_parent() if options.in_turns else recorder.passes < options.passes:
            recorder.begin()
            results = workload.run(recorder, **sizes)
            torch.cuda.synchronize()
            say(number=recorder.passes, seconds=recorder.seconds)
            recorder.end()
            if not found:
                found = describe(recorder, results)
            del results
            gc.collect()
    except torch.OutOfMemoryError as error:
        if options.limit is None:
            raise
        devices = [asdict(device) for device in allocator_devices(options.allocator)]
        failure = {
            "pass": recorder.passes,
            "step": len(recorder.seconds),
            "verdict": verdict(error),
            "devices": devices,
        }
        return {**what, **found, "limit": options.limit, "out_of_memory": failure}
    return {**what, **found}


def describe(recorder: Recorder, results: Sequence[Tensor]) -> dict[str, Any]:
    """Peaks, costs and results of the pass that has just ended, the first."""
    import torch

    steps = len(recorder.costs)
    free, total = torch.cuda.mem_get_info()
    stats = torch.cuda.memory_stats()
    return {
        "steps": steps,
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "peak_active": stats.get("active_bytes.all.peak", 0),
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "reserved": torch.cuda.memory_reserved(),
        "device_used": total - free,
        "costs": after_warm_up(recorder.costs, max(1, steps // WARM_UP)),
        "losses": recorder.losses,
        "checksum": checksum(results) if recorder.keep_losses else "",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocator", choices=ALLOCATORS, required=True)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--clock", action="store_true", help="simulated, with a clock")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--in-turns", action="store_true", help="until the parent says to stop")
    parser.add_argument("--limit", type=int, metavar="BYTES", help="on reserved memory")
    parser.add_argument("--losses", action="store_true", help="keep losses and a checksum")
    parser.add_argument("--deterministic", action="store_true")
    print(json.dumps(measure(parser.parse_args())), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
