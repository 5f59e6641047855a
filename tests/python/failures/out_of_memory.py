"""The message of an out-of-memory error, and the result of `explain()`."""

import json

import torch

import ferro_alloc

MIB = 1 << 20
seen = {}


def take(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def failure(mib):
    try:
        take(mib)
    except torch.OutOfMemoryError as error:
        return error
    raise AssertionError(f"there were {mib} MiB")


def shown(error):
    """Sizes in MiB."""
    found = ferro_alloc.explain(error)
    return {
        "verdict": found.verdict,
        "request": found.request_bytes / MIB,
        "shortfall": found.shortfall_bytes / MIB,
        "free": found.device_free_bytes / MIB,
        "limit": None if found.limit_bytes is None else found.limit_bytes / MIB,
        "reserved": found.reserved_bytes / MIB,
        "live": found.live_bytes / MIB,
        "previous": [found.previous_reserved_bytes / MIB, found.previous_live_bytes / MIB],
        "other": found.other_bytes / MIB,
        "streams": [
            [share.stream == side.cuda_stream, share.reserved_bytes / MIB, share.live_bytes / MIB]
            for share in found.streams
        ],
        "pools": [[share.name, share.live_bytes / MIB] for share in found.pools],
    }


side = torch.cuda.Stream()
before = take(300)
seen["native"] = ferro_alloc.explain(failure(800))

ferro_alloc.install()
mine = take(200)
with torch.cuda.stream(side):
    other = take(100)
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    inside = take(64)
error = failure(500)
seen["text"] = str(error)
seen["explained"] = shown(error)
seen["arguments"] = error.args == (str(error),)
seen["attribute"] = error.ferro_alloc == ferro_alloc.explain(error)
seen["quoted"] = ferro_alloc.explain(RuntimeError(f"step 3: {error}")) == ferro_alloc.explain(error)

del before
torch.cuda.set_per_process_memory_fraction(0.5)
limited = failure(200)
seen["limited"] = shown(limited)
torch.cuda.set_per_process_memory_fraction(1.0)

seen["another error"] = ferro_alloc.explain(ValueError("CUDA out of memory."))
for size in range(16):
    failure(900 + size)
seen["older than the last 16"] = ferro_alloc.explain(error)
try:
    ferro_alloc.explain(str(error))
except TypeError as refusal:
    seen["no error"] = str(refusal).endswith("expected an exception")
del pool, inside
print(json.dumps(seen))
