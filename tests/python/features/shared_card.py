"""Settings for a card that other programs use too: the headroom for them, and the kept memory."""

import json

import torch

import ferro_alloc

MIB = 1 << 20
seen = {}

ferro_alloc.install(ferro_alloc.Config(headroom_mb=256, idle_mb=64))
kept = []
try:
    while True:
        kept.append(torch.empty(32 * MIB, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError as error:
    seen["verdict"] = "HEADROOM: " in str(error) and "256.00 MiB are left to others" in str(error)
seen["free"] = torch.cuda.mem_get_info()[0] // MIB
seen["taken"] = torch.cuda.memory_allocated() // MIB


def unmaps():
    return ferro_alloc.status().devices[0].driver_calls["unmap"]


del kept[2:]
torch.cuda.empty_cache()
seen["kept"] = torch.cuda.memory_reserved() // MIB - 64
before = unmaps()
again = torch.empty(60 * MIB, dtype=torch.uint8, device="cuda")
del again
torch.cuda.empty_cache()
seen["unmapped by the next one"] = unmaps() - before
seen["ladder"] = ferro_alloc.status().devices[0].ladder_ms.keys() == (
    ferro_alloc.status().devices[0].ladder.keys()
)
seen["slowest"] = 0 < ferro_alloc.device().slowest_miss_ms < 1000
ferro_alloc.device().reset_slowest_miss()
seen["reset"] = ferro_alloc.device().slowest_miss_ms
print(json.dumps(seen))
