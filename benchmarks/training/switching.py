"""Workloads under two allocators in turns within one process: its own, and ferro_alloc.

Whole processes of one allocator differ by up to 20 % where the host is the limit; passes of one
process by far less. A pass runs the same seeded steps, and frees all it took. `install()` and
`uninstall()` change the allocator between passes; each keeps what it has cached until the next
workload. The first pass of an allocator counts for its peaks and costs, the later ones for times.

Prints one object for each workload with the times of the steps and the fields of `describe` in
benchmarks.harness.measure, by allocator.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.harness.costs import costs_so_far
from benchmarks.harness.measure import Recorder, describe, leave_out_cudnn_attention
from benchmarks.harness.processes import ALLOCATORS, OURS, say, use_allocator
from benchmarks.harness.turns import enough_passes, order


def switch_to(allocator: str) -> None:
    """Installs an allocator. Clears cuBLAS' workspaces, which outlive a pass."""
    import torch

    import ferro_alloc

    torch._C._cuda_clearCublasWorkspaces()
    if allocator == OURS:
        ferro_alloc.install()
    else:
        ferro_alloc.uninstall()


def forget_all(allocators: Sequence[str]) -> None:
    """Makes all allocators release the memory of earlier workloads."""
    import torch

    gc.collect()
    for allocator in allocators:
        switch_to(allocator)
        torch.cuda.empty_cache()


def compare(workload: str, allocators: Sequence[str], options: argparse.Namespace) -> None:
    """Prints the time and memory of the workload under each allocator."""
    import torch

    from benchmarks.models.workloads import WORKLOADS

    chosen = WORKLOADS[workload]
    sizes = chosen.smoke if options.smoke else chosen.sizes

    def run_pass(allocator: str, recorder: Recorder) -> None:
        switch_to(allocator)
        if recorder.passes == 0:
            torch.cuda.reset_peak_memory_stats()
        recorder.begin()
        results = chosen.run(recorder, **sizes)
        torch.cuda.synchronize()
        recorder.end()
        if recorder.passes == 1:
            found[allocator] = describe(recorder, results)
        del results
        gc.collect()

    forget_all(allocators)
    found: dict[str, dict[str, Any]] = {}
    recorders = {}
    for name in allocators:
        costs = partial(costs_so_far, name, options.simulated)
        recorders[name] = Recorder(losses=False, costs=costs, now=time.perf_counter)
        run_pass(name, recorders[name])
        found[name]["passes"] = []
    # The first pass of the process also loads the libraries.
    quickest = min(sum(recorder.seconds) for recorder in recorders.values())
    brief = options.simulated or options.smoke
    for number in range(1 if brief else enough_passes(options.seconds, quickest)):
        for name in order(allocators, number):
            run_pass(name, recorders[name])
            found[name]["passes"].append(recorders[name].seconds)
    say(workload=workload, allocators=found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocator", choices=ALLOCATORS, required=True, help="of this process")
    parser.add_argument("--alone", action="store_true", help="not beside ferro_alloc")
    parser.add_argument("--workloads", nargs="+", required=True)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--seconds", type=float, required=True, help="timed for each allocator")
    options = parser.parse_args()
    use_allocator(options.allocator, options.simulated)
    import torch

    leave_out_cudnn_attention()
    torch.cuda.init()
    allocators = [options.allocator] + [OURS] * (not options.alone)
    for workload in options.workloads:
        compare(workload, allocators, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
