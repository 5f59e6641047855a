"""One family under one allocator on one size of card, in this process.

Prints one object: the peaks of the allocator, whether the program ended without running out of
memory, the attention kernels that it chose, and the memory that the process took outside the
allocator.

The size is the memory that the allocator may reserve. A simulated card has that and the memory of a
context and the libraries; on a real card it is PyTorch's limit, which counts neither.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from contextlib import redirect_stdout
from typing import Any

from benchmarks.families.outside import used_by_this_process
from benchmarks.families.table import FAMILIES, MIB, PAGE_MIB
from benchmarks.harness.processes import ROOT, SIMULATED_ALLOCATORS, say, use_allocator

GPU = "h100"


def simulated_machine(limit: int | None, ranks: int) -> dict[str, int]:
    """The arguments of `sim.activate()`, as `ferro_alloc simulate --memory` gives them.

    A card has whole pages of 2 MiB, and all of `limit` is free on it.
    """
    from ferro_alloc.sim.cards import LIBRARIES, find_card

    taken = find_card(GPU).context + LIBRARIES
    machine = {"count": ranks, "context": taken}
    page = PAGE_MIB * MIB
    pages = -(-taken // page)
    return machine if limit is None else {**machine, "memory": limit + pages * page}


def watch_attention() -> set[str]:
    """The kernels that PyTorch chooses for `scaled_dot_product_attention`, as they are chosen."""
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend

    chosen: set[str] = set()
    original = F.scaled_dot_product_attention

    def watched(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            number = torch._fused_sdp_choice(**given)
            chosen.add(SDPBackend(number).name.removesuffix("_ATTENTION").lower())
        return original(*args, **kwargs)

    F.scaled_dot_product_attention = watched
    return chosen


def requests(device: int) -> list[int]:
    """The bytes of requests, and the negated bytes of frees, in order."""
    import torch

    signs = {"alloc": 1, "free_completed": -1}
    events = torch.cuda.memory._snapshot()["device_traces"][device]
    return [signs[e["action"]] * e["size"] for e in events if e["action"] in signs]


def end_with_parent() -> None:
    """Ends this rank with its parent, for which it would otherwise wait forever."""
    sys.stdin.buffer.read()
    os._exit(1)


def join_ranks(options: argparse.Namespace, ranks: int) -> subprocess.Popen[bytes] | None:
    """Starts the other rank, and creates the process group with it."""
    import torch
    import torch.distributed as dist

    other = None
    if options.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, ranks, is_master=True, wait_for_workers=False)
        words = [*sys.argv[1:], "--rank", "1", "--port", str(store.port)]
        other = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.families.child", *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
    else:
        threading.Thread(target=end_with_parent, daemon=True).start()
        store = dist.TCPStore("127.0.0.1", options.port, ranks, is_master=False)
    torch.cuda.set_device(options.rank)
    dist.init_process_group("nccl", store=store, rank=options.rank, world_size=ranks)
    return other


def measure(options: argparse.Namespace) -> dict[str, Any]:
    family = FAMILIES[options.family]
    limit = None if options.limit is None else options.limit * MIB
    machine = simulated_machine(limit, family.ranks) if options.simulated else {}
    use_allocator(options.allocator, options.simulated, gpu=GPU, **machine)
    import torch

    torch.manual_seed(0)
    torch.cuda.init()
    if options.plain:
        torch.backends.cudnn.enabled = False
        torch.backends.cuda.enable_cudnn_sdp(False)
    torch.cuda.set_device(options.rank)
    if limit is not None and not options.simulated:
        total = torch.cuda.mem_get_info()[1]
        # Half a byte more, because the allocators round the product down.
        torch.cuda.set_per_process_memory_fraction((limit + 0.5) / total)
    if options.requests:
        torch.cuda.memory._record_memory_history(context=None)
    attention = watch_attention()
    other = join_ranks(options, family.ranks) if family.ranks > 1 else None
    began = time.monotonic()
    failure = ""
    try:
        # The output of a library is not a result.
        with redirect_stdout(sys.stderr):
            family.function()(**family.sizes_of(options.smoke, options.batch))
        torch.cuda.synchronize()
    except torch.OutOfMemoryError as error:
        failure = str(error)
    free, total = torch.cuda.mem_get_info()
    used = total - free if options.alone else used_by_this_process(options.rank)
    found = {
        "fits": not failure,
        "failure": failure,
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "outside": None if used is None else used - torch.cuda.memory_reserved(),
        "emptied_cache": torch.cuda.memory_stats().get("num_alloc_retries", 0),
        "attention": sorted(attention),
        "seconds": time.monotonic() - began,
        "device": torch.cuda.get_device_name(),
    }
    if options.requests:
        found["requests"] = requests(options.rank)
    if other is not None:
        # The other rank would wait forever for one that has run out of memory.
        if failure:
            other.kill()
        other.wait()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--allocator", choices=SIMULATED_ALLOCATORS, required=True)
    parser.add_argument("--limit", type=int, metavar="MIB", help="without it the whole card")
    parser.add_argument("--batch", type=int, help="of each step; without it the family's own")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--plain", action="store_true", help="without cuDNN")
    parser.add_argument("--requests", action="store_true", help="say what was asked for, too")
    parser.add_argument("--alone", action="store_true", help="no other process uses the card")
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    say(**measure(parser.parse_args()))
    sys.stdout.flush()
    # The shutdown of libraries, such as process groups, is not measured.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
