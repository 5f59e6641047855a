"""What the programs of the clients share: one allocator, one run, one line of figures.

They run on the simulated GPU, with the name of an allocator as their first argument.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import ferro_alloc

OURS = ("pages", "segments")


def allocator() -> str:
    return sys.argv[1]


def measure(program: Callable[[], Any]) -> None:
    """Runs it under that allocator, and prints what it returns, with its peaks and its time.

    The client is imported by then, so the time, in seconds, is that of its work.
    """
    import torch

    if allocator() in OURS:
        ferro_alloc.install(strict=True)
    started = time.perf_counter()
    value = program()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    backend = torch.cuda.get_allocator_backend()
    assert backend == ("ferro_alloc" if allocator() in OURS else "native"), backend
    found = {
        "value": value,
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "seconds": seconds,
    }
    print(json.dumps(found), flush=True)
