"""Records a history in which a sample of entries has stacks; prints their numbers as JSON."""

import json
import sys

import torch

import ferro_alloc

OURS = sys.argv[1] == "ferro_alloc"
MIB = 1 << 20
COUNT = 20_000
if OURS:
    ferro_alloc.install()


def take(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def with_stacks(sizes):
    """How many of these consecutive requests got a stack."""
    entries = torch.cuda.memory._snapshot()["device_traces"][0]
    before = sum(entry["action"] == "alloc" for entry in entries)
    for size in sizes:
        take(size)
    entries = torch.cuda.memory._snapshot()["device_traces"][0]
    allocated = [entry for entry in entries if entry["action"] == "alloc"][before:]
    assert len(allocated) == len(sizes)
    return sum(bool(entry.get("frames")) for entry in allocated)


refused = []
for wrong in ({"max_entries": 0}, {"sample_bytes": -1}, {"sample_bytes": 0.5}):
    try:
        ferro_alloc.record_history(**wrong)
    except ferro_alloc.FerroError as error:
        refused.append("expected a whole number" in str(error))

ferro_alloc.record_history()
found = {"small": with_stacks([64 << 10] * COUNT), "large": with_stacks([64 * MIB] * 5)}
actions = {entry["action"] for entry in torch.cuda.memory._snapshot()["device_traces"][0]}
found["skipped"] = "free_requested" not in actions and "free_completed" in actions
kept = [take(64 * MIB) for _ in range(3)]
if OURS:
    try:
        take(1 << 40)
    except torch.OutOfMemoryError as error:
        largest = ferro_alloc.explain(error).call_sites[0]
        found["line"] = [largest.line.rpartition(":")[2], largest.live_bytes]
torch.cuda.memory._dump_snapshot(sys.argv[2])
ferro_alloc.record_history(sample_bytes=0)
found["all"] = with_stacks([64 << 10] * 100)
ferro_alloc.record_history()
torch.cuda.memory._record_memory_history(context="alloc", stacks="python")
found["PyTorch's own"] = with_stacks([64 << 10] * 100)
torch.cuda.memory._record_memory_history(enabled=None)
print(json.dumps({**found, "refused": refused}))
