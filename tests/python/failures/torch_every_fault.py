"""Runs a small program once for each of its driver calls, with this call refused.

The program's second argument is the CUresult. Each step is one call of torch. When it fails, the
error names the driver's function, nothing is allocated, and a repetition of the step succeeds.
Prints for each function the number of its calls, and the number of refusals that torch saw.
"""

import gc
import json
import sys

from tests.python.every_fault import held
from tests.python.feature_checks import ALLOCATOR, MIB, check_invariants, filled, take, words

import torch
from ferro_alloc import _C, sim

RESULT = int(sys.argv[2])
TOTAL = torch.cuda.mem_get_info()[1]
# Pages move where they are needed; segments with live blocks stay.
MOST = TOTAL - (38 if ALLOCATOR == "ferro" else 116) * MIB
FUNCTIONS = (
    "cuMemAlloc",
    "cuMemFree",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemGetInfo",
    "cuEventCreate",
    "cuEventDestroy",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamWaitEvent",
    "cuCtxRecordEvent",
)
side, capturing = torch.cuda.Stream(), torch.cuda.Stream()


class Program:
    def __init__(self):
        self.kept = {}

    def steps(self):
        """Yields steps. A failed step is repeated, so each step changes one thing."""
        kept = self.kept
        yield from (lambda n=n: self.keep(n, 3 * MIB) for n in "abc")
        yield lambda: self.keep("small", 1000)
        with torch.cuda.stream(torch.cuda.Stream()):
            yield lambda: self.keep("new", 5 * MIB)
        with torch.cuda.stream(side):
            yield from (lambda n=n, s=s: self.keep(n, s) for n, s in (("d", 9 * MIB), ("e", 700)))
        yield lambda: kept["a"].record_stream(side)
        yield lambda: kept.pop("a", None)
        yield torch.cuda.memory_stats
        yield lambda: kept["d"].record_stream(torch.cuda.current_stream())
        yield lambda: kept.pop("d", None)
        yield lambda: self.keep("large", 30 * MIB)
        yield torch.cuda.empty_cache
        yield lambda: kept.setdefault("pool", torch.cuda.MemPool())
        with torch.cuda.use_mem_pool(kept["pool"]):
            yield lambda: self.keep("inside", 4 * MIB)
        yield lambda: kept.pop("large", None)
        yield self.capture
        yield lambda: kept["graph"].replay()
        yield torch.cuda.memory._snapshot
        yield self.ask_too_much
        # This needs nearly all memory, so all unused memory must be collected.
        yield lambda: kept.pop("b", None)
        with torch.cuda.stream(side):
            yield lambda: self.keep("most", MOST)
        yield lambda: kept.pop("most", None)
        yield lambda: kept.pop("inside", None)
        yield lambda: kept.pop("pool", None)
        yield lambda: kept.pop("graph", None)
        yield lambda: kept.pop("result", None)
        yield torch.cuda.empty_cache
        yield kept.clear
        yield torch.cuda.empty_cache

    def keep(self, name, size):
        self.kept[name] = take(size)

    def capture(self):
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, stream=capturing):
                between = guard.clone()
                result = between.clone()
        finally:
            torch.cuda.set_stream(current)
        self.kept["graph"], self.kept["result"] = graph, result

    def ask_too_much(self):
        try:
            take(2 * TOTAL)
        except torch.OutOfMemoryError as error:
            assert "Tried to allocate" in str(error)
        else:
            raise AssertionError("there was room for twice the card")


def in_use():
    view = _C.device_view(0)
    return view["memory_allocated"], view["blocks"]


def run(function=None, number=0):
    """Returns the number of failed steps; asserts the conditions around a failure."""
    failures = 0
    if function:
        sim.fault(function, call=number, result=RESULT)
    for index, step in enumerate(Program().steps()):
        before = in_use()
        try:
            step()
            continue
        except RuntimeError as error:
            assert len(error.args) == 1
            text = str(error)
            assert (
                f"ferro_alloc: {function} failed with" in text
                or "CUDA error: " in text
                or (RESULT == sim._control.OUT_OF_MEMORY and "CUDA out of memory. Tried to" in text)
            ), (index, text)
        sim.clear_faults()
        failures += 1
        where = (function, number, index)
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.memory_stats()
        assert in_use() == before, (where, in_use(), before)
        check_invariants()
        step()
    sim.clear_faults()
    return failures


def run_checked(*fault):
    failures = run(*fault)
    assert torch.equal(guard.cpu(), expected), fault
    assert held() == held_at_start, (fault, held(), held_at_start)
    return failures


guard, expected = filled(4 * MIB, 7), words(7, 4 * MIB)
# While a graph lives, the next one finds the tensors that its generator reads. PyTorch 2.11 ends
# the process when it cannot allocate them.
steady = torch.cuda.CUDAGraph()
with torch.cuda.graph(steady, stream=capturing):
    steady_result = guard.clone()
run()
held_at_start = held()
sim.reset_counters()
run_checked()
counters = sim.counters()
calls = {
    name: sum(counters[symbol].calls for symbol in (name, f"{name}_v2") if symbol in counters)
    for name in FUNCTIONS
}
found = {}
for function in FUNCTIONS:
    if RESULT == sim._control.OUT_OF_MEMORY and not function.startswith("cuMem"):
        continue
    # Of calls that repeat for each page of a large block, only some are refused.
    numbers = [n for n in range(1, calls[function] + 1) if n <= 10 or n % 6 == 0]
    failures = [run_checked(function, number) for number in numbers]
    found[function] = [len(numbers), sum(failures)]
    assert max(failures, default=0) <= 1
assert run_checked() == 0
print(json.dumps(found))
