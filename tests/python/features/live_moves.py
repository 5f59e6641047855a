"""Large handles of which little is live: a request that needs the rest, with and without moves."""

import json
import sys

import torch

import ferro_alloc

MIB = 1 << 20
seen = {}

if sys.argv[1] == "switched on":
    ferro_alloc.install()
    torch.empty(1, device="cuda")
    ferro_alloc.uninstall()
ferro_alloc.install(ferro_alloc.Config(move_live=sys.argv[1] != "off"))
base = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
# Comes on handles of 8 MiB, each of which gets a small tensor and a large one.
del_later = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
del del_later
kept, fillers = [], []
for i in range(128):
    kept.append(torch.full((1000,), float(i)).cuda())
    fillers.append(torch.empty(8 * MIB - 4096, dtype=torch.uint8, device="cuda"))
rest = torch.empty(torch.cuda.mem_get_info()[0] - 64 * MIB, dtype=torch.uint8, device="cuda")
del fillers
addresses = [tensor.data_ptr() for tensor in kept]
try:
    wanted = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    seen["served"] = wanted.zero_().numel() == 512 * MIB
except torch.OutOfMemoryError as error:
    seen["served"] = "move_live:true lets these move" in str(error)
seen["values"] = all(bool((tensor.cpu() == i).all()) for i, tensor in enumerate(kept))
seen["addresses"] = addresses == [tensor.data_ptr() for tensor in kept]
for i, tensor in enumerate(kept):
    tensor.copy_(torch.full((1000,), i + 1.0))
seen["values"] &= all(bool((tensor.cpu() == i + 1).all()) for i, tensor in enumerate(kept))
device = ferro_alloc.status().devices[0]
seen["moved"] = [device.live_moves, device.live_bytes_copied // MIB, device.live_pages_freed]
seen["ended by it"] = device.ladder["move_live"]
print(json.dumps(seen))
