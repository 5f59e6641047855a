"""Choices from unknown numbers: of the same numbers, of masked ones, of graphs, and on other cards.

Prints what each case found as JSON, and what the program learned from uncomputed values.
"""

import json
import sys
import threading

import torch

from ferro_alloc import sim

WIDTH, ROWS = 2048, 2048


def unknown(columns=ROWS, device="cuda"):
    product = torch.ones(WIDTH, WIDTH, device=device) @ torch.ones(WIDTH, ROWS, device=device)
    return product[:, :columns].clone()


def other_thread_reads():
    drawn = unknown().argmax(1)
    end = threading.Event()
    ready = threading.Event()

    def read():
        while not end.is_set():
            drawn[:5].cpu()  # the other thread's line
            ready.set()

    thread = threading.Thread(target=read)
    thread.start()
    ready.wait()
    known = torch.arange(5, device="cuda")
    for _ in range(1000):
        known.sum().item()
    end.set()
    thread.join()
    return len({read.place for read in sim.uncomputed_reads()})


before = {(read.place, read.operator): read.count for read in sim.uncomputed_reads()}
result = globals()[sys.argv[1]]()
torch.cuda.synchronize()
learned = {
    read.learned
    for read in sim.uncomputed_reads()
    if read.count != before.get((read.place, read.operator))
}
print(json.dumps({"found": result, "learned": sorted(learned)}))
