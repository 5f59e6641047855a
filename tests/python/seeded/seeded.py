"""Runs seeded programs on the simulated GPU under an allocator and checks every byte.

    seeded.py --allocator ferro --mode adversarial --seed 7 --programs 10 --steps 1000

Prints a JSON summary; the exit status is 1 when a byte was wrong or a call failed.
"""

import argparse
import json
import os
import queue
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from seeded_operations import EXTRAS

ALLOCATORS = ("native", "expandable", "ferro", "segments")
MISTAKES = ("", "wait", "record_stream", "update", "order", "late")
arguments = argparse.ArgumentParser()
arguments.add_argument("--allocator", choices=ALLOCATORS, default="ferro")
arguments.add_argument("--mode", choices=("eager", "adversarial"), default="adversarial")
arguments.add_argument("--seed", type=int, default=0)
arguments.add_argument("--programs", type=int, default=1, help="with seeds SEED, SEED + 1, ...")
arguments.add_argument("--steps", type=int, default=1000)
arguments.add_argument("--threads", type=int, default=2)
arguments.add_argument(
    "--at-once", action="store_true", help="threads run freely, one program each"
)
arguments.add_argument("--turn", default="0.01", help="how likely a CUDA call does queued work")
arguments.add_argument("--memory", default="2GiB", help="memory of the simulated device")
arguments.add_argument("--mistake", choices=MISTAKES, default="")
arguments.add_argument("--without", nargs="*", default=[], help="graphs, mempools, empty_cache")
arguments.add_argument("--extras", nargs="*", default=[], choices=EXTRAS)
arguments.add_argument(
    "--late-waits",
    choices=("stream", "host"),
    default="",
    help="programs without record_stream; what waits for uses of freed memory on other streams",
)
arguments.add_argument("--orderly-drops", action="store_true")
arguments.add_argument(
    "--stop-when-caught", action="store_true", help="at the first wrong read, if threads take turns"
)
arguments.add_argument("--mutant", help="library and name of a planted fault, as in path:name")
arguments.add_argument("--judge-log", type=Path)
options = arguments.parse_args()
# These extras change the memory of all threads, call Python under a lock (own pools), or call
# cudaFree while another thread captures (uncached).
IN_TURNS = {"groups", "limits", "own_pools", "switches", "uncached"}
if options.at_once and IN_TURNS & set(options.extras):
    arguments.error("some of these extras need threads that take turns")
if options.late_waits and (options.extras or options.at_once):
    arguments.error("programs with late waits have no extras and threads that take turns")

os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
if options.allocator == "expandable":
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

# A call of torch makes some ten CUDA calls, so the usual share would leave little work queued.
os.environ["FERRO_SIM_TURN"] = options.turn

from ferro_alloc import sim

devices = range(2 if "peers" in options.extras else 1)
sim.activate(count=len(devices), mode=options.mode, seed=options.seed, memory=options.memory)

import torch

import ferro_alloc
import seeded_operations as ops
import seeded_late
import seeded_plan as plan
import seeded_run
import seeded_statistics

torch.set_num_threads(1)
check_invariants = None
ours = options.allocator in ("ferro", "segments")
layout = "segments" if options.allocator == "segments" else "pages"
config = ferro_alloc.Config(layout=layout)
if ours:
    ferro_alloc.install(config)
    from ferro_alloc import _C

    def check_invariants() -> None:
        for device in devices:
            _C.check_invariants(device)


def switch() -> None:
    if ours:
        if ferro_alloc.is_installed():
            ferro_alloc.uninstall()
        else:
            ferro_alloc.install(config)


def free_memory() -> int:
    return sum(torch.cuda.mem_get_info(device)[0] for device in devices)


torch.cuda.init()
free_at_start = free_memory()
if options.mutant:
    import mutant

    mutant.plant(*options.mutant.rsplit(":", 1))

shape = ops.Shape(
    threads=1 if options.at_once else options.threads,
    graphs="graphs" not in options.without,
    mempools="mempools" not in options.without,
    empty_cache="empty_cache" not in options.without,
    orderly_drops=options.orderly_drops,
    mistake=options.mistake,
    late_waits=options.late_waits,
    streams=5 if options.late_waits else 4,
    extras=frozenset(options.extras),
)
parallel = options.threads if options.at_once else 1
hosts = [seeded_run.host_memory() for _ in range(parallel)]
streams = [
    [torch.cuda.Stream(device) for device in devices for _ in range(shape.streams)]
    for _ in range(parallel)
]
log = []
kept = []
"""Executors of programs, which may hold tensors that a failed device cannot free."""


def log_step(operation: ops.Operation, answer: object) -> None:
    log.append([type(operation).__name__, answer, *seeded_statistics.statistics(devices)])


def run_program(seed: int) -> seeded_run.Tally:
    if not options.at_once:
        executor = seeded_run.Executor(streams[0], hosts[0], check_invariants, switch=switch)
        executor.mistake = options.mistake
        kept[:] = [executor]
        planner = seeded_late.LatePlanner if options.late_waits else plan.Planner
        program = planner(seed, options.steps, shape)
        observer = log_step if options.judge_log else None
        stop = options.stop_when_caught
        return seeded_run.run_in_turns(program, executor, shape.threads, observer, stop)
    alone = threading.RLock()
    boxes = [queue.SimpleQueue() for _ in range(parallel)]
    programs = []
    for i in range(parallel):
        # The next thread frees the tensor, at any later time.
        mail = (boxes[i], boxes[(i + 1) % parallel])
        executor = seeded_run.Executor(streams[i], hosts[i], None, alone, *mail)
        programs.append((plan.Planner(seed * parallel + i, options.steps, shape), executor))
    tally = seeded_run.run_at_once(programs)
    # The sums over all heaps agree only while no thread allocates.
    if check_invariants is not None:
        check_invariants()
    return tally


total = seeded_run.Tally()
failed_seeds = []
for seed in range(options.seed, options.seed + options.programs):
    tally = run_program(seed)
    total.add(tally)
    if tally.failed:
        failed_seeds.append(seed)
    if tally.errors or (tally.failed and options.stop_when_caught):
        break

result = {
    "operations": sum(total.operations.values()),
    "by_kind": dict(total.operations),
    "captured_on": sorted(total.captured_on),
    "replayed_on": sorted(total.replayed_on),
    "replays_of_scalars": total.replays_of_scalars,
    "bytes_checked": total.bytes_checked,
    "wrong_reads": total.wrong_reads,
    "wrong_bytes": total.wrong_bytes,
    "errors": total.errors,
    "failed_seeds": failed_seeds,
}
if not total.errors:
    for device in devices:
        torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    result["reserved_at_end"] = sum(map(torch.cuda.memory_reserved, devices))
    result["allocated_at_end"] = sum(map(torch.cuda.memory_allocated, devices))
    result["free_lost"] = free_at_start - free_memory()
    if ours and ferro_alloc.is_installed():
        result["report"] = _C.device_report(0)
if options.judge_log:
    columns = ["operation", "answer", *seeded_statistics.columns(devices)]
    options.judge_log.write_text(json.dumps({"columns": columns, "steps": log}))
print(json.dumps(result))
sys.stdout.flush()
if options.mutant or total.errors:
    # After a fault an orderly exit may fail or hang.
    os._exit(int(total.failed))
sys.exit(int(total.failed))
