"""Runs out of memory while reports are requested: ALLOCATOR FOLDER. The last line is JSON."""

import json
import os
import sys
import threading
from pathlib import Path

import torch

import ferro_alloc

allocator, folder = sys.argv[1], Path(sys.argv[2])
seen = {}


def asked(path):
    try:
        ferro_alloc.report_on_oom(path)
    except ferro_alloc.FerroError as error:
        return str(error)
    return "asked"


def hold_most():
    return torch.empty(700 << 20, dtype=torch.uint8, device="cuda")


def fail():
    try:
        torch.empty(900 << 20, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        return str(error)
    raise AssertionError("there was memory")


def written():
    return sorted(path.name for path in folder.iterdir())


seen["missing folder"] = asked(folder / "missing" / "report.html")
seen["before CUDA"] = asked(folder / "first.html")
seen["initialised"] = torch.cuda.is_initialized()
asked(folder / "of-{pid}.html")
asked(folder / "taken.html")
(folder / "taken.html").mkdir()
seen["a folder"] = asked(folder / "taken.html")

if allocator == "late":
    early = torch.empty(1, device="cuda")
if allocator != "native":
    ferro_alloc.install()
torch.cuda.memory._record_memory_history(stacks="python")
kept = hold_most()
seen["nothing yet"] = written()
seen["error"] = fail()
seen["pid"] = os.getpid()
seen["written"] = written()

# A report is written only once for a path, also after another request.
(folder / "first.html").unlink()
asked(folder / "first.html")
fail()
seen["again"] = written()

# Many threads fail at once, and one of them writes.
asked(folder / "threads.html")
threads = [threading.Thread(target=fail) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
seen["threads"] = written()

# Within a capture, whose end the program decides about.
asked(folder / "capture.html")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    inside = torch.empty(1 << 20, device="cuda")
    seen["in a capture"] = fail()[:19]
graph.replay()
seen["captured"] = written()
print(json.dumps(seen))
