"""Runs one seeded program and prints the statistics of the allocator after every step.

Arguments: the allocator ("native", or "segments" for ferro_alloc in the classic layout), the seed,
the number of steps, and the share of the device's memory that may be used. Under both allocators
the program makes the same requests in the same order, so the two outputs must be the same.
"""

import hashlib
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch

import ferro_alloc

MIB = 1 << 20
allocator, seed, steps, fraction = sys.argv[1], *map(float, sys.argv[2:5])
if allocator == "segments":
    ferro_alloc.install(ferro_alloc.Config(layout="segments"))
random.seed(int(seed))
torch.cuda.set_per_process_memory_fraction(fraction)
FREE_AT_START = torch.cuda.mem_get_info()[0]

NAMES = [
    f"{kind}.{pool}.{column}"
    for kind in ("allocated_bytes", "reserved_bytes", "segment", "allocation", "requested_bytes",
                 "active_bytes", "inactive_split", "inactive_split_bytes")
    for pool in ("all", "small_pool", "large_pool")
    for column in ("current", "peak", "allocated", "freed")
] + [
    "num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free",
    "max_split_size",
    *[f"oversize_{what}.{column}" for what in ("allocations", "segments")
      for column in ("current", "peak", "allocated", "freed")],
]  # fmt: skip
streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
live: list[torch.Tensor] = []
pools: list[torch.cuda.MemPool] = []
checkpoints: list[tuple[object, object]] = []


def size() -> int:
    """Most sizes are small, some are near a limit of the policy, few are large."""
    kind = random.random()
    if kind < 0.45:
        return random.choice([1, 512, 513, random.randrange(1, MIB)])
    if kind < 0.6:
        edge = random.choice([1, 2, 10, 20]) * MIB
        return edge + random.choice([-512, -1, 0, 1, 512])
    if kind < 0.9:
        return random.randrange(MIB, 24 * MIB)
    return random.randrange(24 * MIB, 90 * MIB)


def allocate() -> str:
    bytes_ = size()
    try:
        with torch.cuda.stream(random.choice(streams)):
            live.append(torch.empty(bytes_, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        return f"out of memory: {str(error).split('. GPU')[0]}"
    return f"allocate {bytes_}"


def free() -> str:
    if live:
        live.pop(random.randrange(len(live)))
    return "free"


def use_on_another_stream() -> str:
    if live:
        random.choice(live).record_stream(random.choice(streams))
    return "use"


def synchronize() -> str:
    torch.cuda.synchronize()
    return "synchronize"


def empty_cache() -> str:
    torch.cuda.empty_cache()
    return "empty_cache"


def make_pool() -> str:
    if len(pools) < 3:
        pools.append(torch.cuda.MemPool(use_on_oom=random.random() < 0.3))
    return "pool"


def drop_pool() -> str:
    if pools:
        pools.pop(random.randrange(len(pools)))
    return "drop pool"


def allocate_in_pool() -> str:
    bytes_ = size()
    # While a MemPool is in use, PyTorch before 2.13 neither notices complete frees nor gives its
    # cache back. ferro_alloc does both, so the program completes all frees and leaves memory free
    # beforehand.
    torch.cuda.synchronize()
    torch.empty(1, device="cuda")
    room = (
        torch.cuda.get_device_properties(0).total_memory * fraction - torch.cuda.memory_reserved()
    )
    if not pools or room < 100 * MIB:
        return "no pool"
    with torch.cuda.use_mem_pool(random.choice(pools)):
        try:
            live.append(torch.empty(bytes_, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            return "out of memory in a pool"
    return f"allocate {bytes_} in a pool"


def reset_statistics() -> str:
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    return "reset"


ACTIONS = {
    allocate: 52, free: 34, use_on_another_stream: 4, synchronize: 3, empty_cache: 0.4,
    make_pool: 0.5, drop_pool: 0.3, allocate_in_pool: 4, reset_statistics: 0.3,
}  # fmt: skip


def layout() -> list[object]:
    """The contents of all segments, sorted, because their order is that of varying addresses."""
    return sorted(
        (
            segment["segment_type"],
            segment["total_size"],
            segment["is_expandable"],
            tuple(segment["segment_pool_id"]) != (0, 0),
            [
                (b["size"], b["state"], b["requested_size"] * (b["state"] != "inactive"))
                for b in segment["blocks"]
            ],
        )
        for segment in torch.cuda.memory_snapshot()
    )


def main() -> None:
    base = live
    for step in range(int(steps)):
        (action,) = random.choices(list(ACTIONS), weights=list(ACTIONS.values()))
        # Frees while many tensors are live, so that most requests succeed.
        if len(base) > 400:
            action = free
        done = action()
        stats = torch.cuda.memory_stats()
        line = {"step": step, "done": done, "stats": [stats.get(name, 0) for name in NAMES]}
        if step % 50 == 0:
            torch.cuda.synchronize()
            line["layout"] = hashlib.sha256(json.dumps(layout()).encode()).hexdigest()
        print(json.dumps(line))
    live.clear()
    pools.clear()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    leaked = FREE_AT_START - torch.cuda.mem_get_info()[0]
    end = {"reserved": torch.cuda.memory_reserved(), "leaked": leaked, "names": NAMES}
    print(json.dumps(end))


main()
