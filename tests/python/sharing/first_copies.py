"""Threads make the first copy between two devices at the same time, for each pair of devices.

PyTorch says that a pair are peers before the first thread has enabled that. Prints the errors.
"""

import json
import sys
import threading

import torch

import ferro_alloc

ALLOCATOR = sys.argv[1]
THREADS = 4
MIB = 1 << 20
if ALLOCATOR != "native":
    ferro_alloc.install(ferro_alloc.Config(layout=ALLOCATOR))

COUNT = torch.cuda.device_count()
PAIRS = [(a, b) for a in range(COUNT) for b in range(COUNT) if a != b]
# Access to many pages takes long.
kept = [torch.empty(300 * MIB, dtype=torch.uint8, device=f"cuda:{d}") for d in range(COUNT)]
sources = [torch.full((MIB,), d, dtype=torch.uint8, device=f"cuda:{d}") for d in range(COUNT)]
barrier = threading.Barrier(THREADS)
errors: list[str] = []


def copy() -> None:
    for a, b in PAIRS:
        target = torch.empty(MIB, dtype=torch.uint8, device=f"cuda:{b}")
        barrier.wait()
        try:
            target.copy_(sources[a], non_blocking=True)
            if not bool((target.cpu() == a).all()):
                errors.append(f"{a} to {b}: wrong bytes")
        except RuntimeError as error:
            errors.append(f"{a} to {b}: {error}")


threads = [threading.Thread(target=copy) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps({"pairs": len(PAIRS), "errors": errors}))
