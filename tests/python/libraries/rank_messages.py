"""Prints as JSON whether a stream waits for another one whose work may wait for another rank.

    rank_messages.py none | send | recv | batch | inference | "on the host" | collective

The other stream has unfinished work and free memory. By growing, the program would hold far more
than its peak of live bytes, so a request normally waits for that stream instead.
"""

import json
import sys

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import ferro_alloc
from ferro_alloc import sim

MIB = 1 << 20
ferro_alloc.install()
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
message = torch.empty(512, dtype=torch.uint8, device="cuda")
side = torch.cuda.Stream()


def waits():
    counters = sim.counters()
    return counters["cuStreamWaitEvent"].calls if "cuStreamWaitEvent" in counters else 0


with torch.cuda.stream(side):
    match sys.argv[1]:
        case "send":
            dist.send(message, dst=1)
        case "recv":
            dist.irecv(message, src=1)
        case "batch":
            dist.batch_isend_irecv([dist.P2POp(dist.isend, message, 1)])
        case "inference":
            with torch.inference_mode():
                dist.isend(torch.empty(512, dtype=torch.uint8, device="cuda"), dst=1)
        case "on the host":
            dist.send(torch.empty(512), dst=1)
        case "collective":
            dist.all_reduce(message)
    busy = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda").zero_()
    del busy
before = waits()
reserved = torch.cuda.memory_reserved()
kept = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
grown = round((torch.cuda.memory_reserved() - reserved) / MIB)
json.dump({"waits": waits() - before, "grown_mib": grown}, sys.stdout)
dist.destroy_process_group()
