"""Shared by the programs of the clients: one allocator, one run, one line of figures.

They run on the simulated GPU, with the name of an allocator as their first argument.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import ferro_alloc

OURS = ("pages", "segments", "everywhere")


def allocator() -> str:
    return sys.argv[1]


def measure(program: Callable[[], Any]) -> None:
    """Runs the program under the allocator, and prints its result, its peaks and its times.

    The client is imported by then, so the times, in seconds, are those of its work: on the clock,
    and of all its threads on processors, on which other programs have less influence.
    """
    import torch

    if allocator() in OURS:
        ferro_alloc.install(strict=True)
    started, used = time.perf_counter(), time.process_time()
    value = program()
    torch.cuda.synchronize()
    seconds, processor_seconds = time.perf_counter() - started, time.process_time() - used
    backend = torch.cuda.get_allocator_backend()
    assert backend == ("ferro_alloc" if allocator() in OURS else "native"), backend
    found = {
        "value": value,
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "seconds": seconds,
        "processor_seconds": processor_seconds,
    }
    print(json.dumps(found), flush=True)
