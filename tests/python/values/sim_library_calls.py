"""Runs the cases of a family on the simulated H200. Prints those with other requests than on a GPU,
those with other values than the host's, and those that failed."""

import json
import sys
from pathlib import Path

import library_cases
import torch

from ferro_alloc import sim

LARGEST = 1 << 14
"""Elements of inputs and results whose values are compared."""

stored = json.loads(Path(__file__).with_name("library_cases.json").read_text())[sys.argv[1]]
answer = {"cases": 0, "requests": [], "values": [], "failed": [], "compared": 0}
library_cases.warm_up()


def dense(tensor):
    return tensor.to_dense() if tensor.layout != torch.strided else tensor


def small(results):
    return sum(each.numel() for each in results) <= LARGEST


def compare(case):
    if "driver=" in case:  # the host has no drivers of cuSOLVER, so they are not computed
        return
    inputs = library_cases.inputs_of(case)
    if not small(inputs.values()) or "f16" in case:
        return
    reads = len(sim.uncomputed_reads())
    found = [dense(each.detach()).cpu() for each in library_cases.outcome(case, inputs)]
    library_cases.DEVICE = "cpu"
    try:
        # The GPU's only driver.
        on_host = case.replace("lstsq(a,b)", "lstsq(a,b,driver='gels')")
        wanted = library_cases.outcome(on_host, library_cases.inputs_of(case))
    finally:
        library_cases.DEVICE = "cuda"
    if not small(wanted):
        return
    answer["compared"] += 1
    wanted = [dense(each.detach()) for each in wanted]
    same = len(found) == len(wanted) and all(
        torch.allclose(a, b, rtol=1e-3, atol=1e-3, equal_nan=True)
        for a, b in zip(found, wanted, strict=True)
    )
    if not same or len(sim.uncomputed_reads()) > reads:
        answer["values"].append(case)


for case, wanted in stored.items():
    answer["cases"] += 1
    try:
        found = library_cases.record(case)
        if found != wanted:
            answer["requests"].append(case)
        compare(case)
    except Exception as error:
        answer["failed"].append(f"{case}: {error}")
    torch.cuda.empty_cache()
print(json.dumps(answer))
