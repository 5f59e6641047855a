"""What a program is told when memory cannot be shared, and that the memory is unharmed."""

import json
import resource
from functools import partial
from typing import Any

from tests.python.feature_checks import MIB, error_of, filled, words

import torch

import ferro_alloc
from ferro_alloc import _C, sim

UNKNOWN, OUT_OF_MEMORY, NOT_SUPPORTED = 999, 2, 801
SIZE = 80 * MIB
results: dict[str, Any] = {}


def share(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage()._share_cuda_()


def release(shared: Any) -> None:
    torch.UntypedStorage._release_ipc_counter_cuda(shared[4], shared[5])


def is_intact(tensor: torch.Tensor, tag: int) -> bool:
    return bool(torch.equal(tensor.cpu(), words(tag, 4 * tensor.numel())))


def with_fault(function: str, lasting: bool, result: int) -> list[Any]:
    """The error of sharing, whether the bytes are still right, and whether it works afterwards."""
    tensor = filled(SIZE, 5)
    torch.cuda.synchronize()
    if lasting:
        sim.fault(function, after=0, result=result)
    else:
        sim.fault(function, call=1, result=result)
    kind, text = error_of(partial(share, tensor))
    sim.clear_faults()
    _C.check_invariants(0)
    intact = is_intact(tensor, 5)
    again = share(tensor)
    intact_again = is_intact(tensor, 5)
    release(again)
    del tensor
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    return [kind, text, intact, intact_again]


for name in ("cuMemExportToShareableHandle", "cuCtxRecordEvent", "cuMemcpyDtoDAsync"):
    results[f"{name} unknown"] = with_fault(name, False, UNKNOWN)
for name in ("cuMemCreate", "cuMemMap"):
    results[f"{name} out of memory"] = with_fault(name, True, OUT_OF_MEMORY)
# Once, while the pages are exchanged; later calls find the first part done.
results["cuMemUnmap out of memory"] = with_fault("cuMemUnmap", True, UNKNOWN)

tensor = filled(SIZE, 6)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    results["under a capture"] = error_of(lambda: share(tensor))
    graph.capture_end()
del graph

scattered = [torch.empty(2 * MIB, dtype=torch.uint8, device="cuda") for _ in range(100)]
del scattered
tensor = filled(SIZE, 6)
files = resource.getrlimit(resource.RLIMIT_NOFILE)
with ferro_alloc.pin(tensor):
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, files[1]))
    results["pinned, with few descriptors"] = error_of(lambda: share(tensor))
    resource.setrlimit(resource.RLIMIT_NOFILE, files)


def open_changed(change: Any) -> tuple[str, str]:
    small = filled(4 * MIB, 7)
    device, handle, size, offset, counter, counter_offset, event, _ = share(small)
    arguments = (device, change(handle), size, offset, counter, counter_offset, event, False)
    error = error_of(lambda: torch.UntypedStorage._new_shared_cuda(*arguments))
    torch.UntypedStorage._release_ipc_counter_cuda(counter, counter_offset)
    return error


results["a process that is gone"] = open_changed(
    lambda handle: handle[:2] + (4_000_000).to_bytes(4, "little") + handle[6:]
)
results["a type nobody knows"] = open_changed(lambda handle: handle[:1] + b"x" + handle[2:])
results["half a handle"] = open_changed(lambda handle: handle[:20])


def given_back() -> tuple[str, str]:
    small = filled(4 * MIB, 8)
    shared = share(small)
    release(shared)
    del small
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    device, handle, size, offset, counter, counter_offset, event, _ = shared
    # Its number may be another descriptor's by now.
    handle = handle[:26] + b"\xff" * 4 + handle[30:]
    arguments = (device, handle, size, offset, counter, counter_offset)
    return error_of(lambda: torch.UntypedStorage._new_shared_cuda(*arguments, event, False))


results["memory given back"] = given_back()

# The other device has created nothing yet. It refuses descriptors, with and without network cards.
for call in (1, 2):
    sim.fault("cuMemCreate", call=call, result=NOT_SUPPORTED)
other = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda:1")
sim.clear_faults()
results["not exportable"] = error_of(lambda: share(other))
print(json.dumps(results))
