"""The errors when memory cannot be shared, and checks that the memory is unharmed."""

import json
import os
import resource
from functools import partial
from typing import Any

from tests.python.feature_checks import MIB, error_of, filled, words

import torch

from ferro_alloc import _C, sim

UNKNOWN, NOT_SUPPORTED = 999, 801
SIZE = 80 * MIB
results: dict[str, Any] = {}


def share(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage()._share_cuda_()


def release(shared: Any) -> None:
    torch.UntypedStorage._release_ipc_counter_cuda(shared[4], shared[5])


def is_intact(tensor: torch.Tensor, tag: int) -> bool:
    return bool(torch.equal(tensor.cpu(), words(tag, 4 * tensor.numel())))


def without_descriptors() -> tuple[str, str]:
    """Shares for the first time, when the process has no socket yet."""
    tensor = filled(SIZE, 4)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    following = os.dup(0)
    os.close(following)
    resource.setrlimit(resource.RLIMIT_NOFILE, (following, limits[1]))
    error = error_of(partial(share, tensor))
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    del tensor
    torch.cuda.empty_cache()
    return error


results["no descriptors at all"] = without_descriptors()


def with_fault(function: str) -> list[Any]:
    """The error of sharing, whether the bytes are still right, and whether it works afterwards."""
    tensor = filled(SIZE, 5)
    torch.cuda.synchronize()
    sim.fault(function, after=0, result=UNKNOWN)
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


filled(MIB, 1).untyped_storage()._share_cuda_()  # PyTorch records an event for the first one
for name in (
    "cuMemExportToShareableHandle",
    "cuCtxRecordEvent",
    "cuMemcpyDtoDAsync",
    "cuMemCreate",
    "cuMemMap",
    "cuMemUnmap",
):
    results[name] = with_fault(name)

tensor = filled(SIZE, 6)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    results["under a capture"] = error_of(lambda: share(tensor))
    graph.capture_end()
del graph


def open_changed(change: Any) -> tuple[str, str]:
    small = filled(4 * MIB, 7)
    device, handle, size, offset, counter, counter_offset, event, _ = share(small)
    arguments = (device, change(handle), size, offset, counter, counter_offset, event, False)
    error = error_of(lambda: torch.UntypedStorage._new_shared_cuda(*arguments))
    torch.UntypedStorage._release_ipc_counter_cuda(counter, counter_offset)
    return error


results["a process that has ended"] = open_changed(
    lambda handle: handle[:2] + (4_000_000).to_bytes(4, "little") + handle[6:]
)
results["an unknown type"] = open_changed(lambda handle: handle[:1] + b"x" + handle[2:])
results["half a handle"] = open_changed(lambda handle: handle[:20])


def given_back() -> tuple[str, str]:
    small = filled(4 * MIB, 8)
    shared = share(small)
    release(shared)
    del small
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    device, handle, size, offset, counter, counter_offset, event, _ = shared
    # Its number may already be another descriptor's.
    handle = handle[:26] + b"\xff" * 4 + handle[30:]
    arguments = (device, handle, size, offset, counter, counter_offset)
    return error_of(lambda: torch.UntypedStorage._new_shared_cuda(*arguments, event, False))


results["released memory"] = given_back()

# The other device has created no memory yet. It refuses descriptors, with and without network
# cards.
for call in (1, 2):
    sim.fault("cuMemCreate", call=call, result=NOT_SUPPORTED)
other = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda:1")
sim.clear_faults()
results["not exportable"] = error_of(lambda: share(other))
print(json.dumps(results))
