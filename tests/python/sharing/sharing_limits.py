"""Sharing tensors on more memory handles than either process may open file descriptors. Every check
returns True.

The argument: whether the other process may take descriptors by pidfd_getfd.
"""

import gc
import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

from tests.python.feature_checks import MIB, check, finish

os.environ["SHARING_PEER"] = json.dumps(
    {
        "parent": os.getpid(),
        "allocator": "ferro",
        "sim": {"memory": "2GiB"},
        "simulated": True,
        "refuse_pidfd": sys.argv[1] == "refuse",
        "fork": True,
    }
)

import torch
import torch.multiprocessing
from sharing_peer import OtherProcess, filled, is_filled, limit_descriptors, open_descriptors

import ferro_alloc
from ferro_alloc import sim

_other = OtherProcess()
ask = _other.ask
PAGES = 64
"""Handles behind the tensor: more than both processes may open in addition."""
SPARE = 24
REFUSED = 304


def scattered(tag: int) -> torch.Tensor:
    """A tensor on single pages that were freed separately."""
    pieces = [torch.empty(2 * MIB, dtype=torch.uint8, device="cuda") for _ in range(PAGES)]
    del pieces
    tensor = filled(2 * PAGES * MIB, tag)
    torch.cuda.synchronize()
    return tensor


def release(*shared: Any) -> None:
    for each in shared:
        torch.UntypedStorage._release_ipc_counter_cuda(each[4], each[5])
    gc.collect()
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()


def descriptors_in(handle: bytes) -> list[int]:
    """The descriptors that another process takes by their numbers; -1: none exists."""
    (count,) = struct.unpack_from("<Q", handle, 18)
    return list(struct.unpack_from(f"<{count}i", handle, handle.index(b"ferroip2") - 4 * count))


def exported() -> int:
    return int(ferro_alloc.status().devices[0].driver_calls["exported"])


limit_descriptors(SPARE)
ask("limit", SPARE)


@check
def a_tensor_on_more_handles_than_descriptors_is_shared_and_read() -> bool:
    tensor = scattered(1)
    before, peer_before = open_descriptors(), ask("descriptors")
    seen = [ask("hold", "many", tensor) != 0, ask("check_held", "many", 1)]
    seen += [ask("refill", tensor, 9), is_filled(tensor, 9)]
    # PyTorch's queue and counters need some descriptors.
    seen += [open_descriptors() - before < 8, ask("descriptors") - peer_before < 8]
    ask("drop", "many")
    del tensor
    gc.collect()
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    return all(seen)


@check
def its_handle_stays_the_same_and_makes_no_driver_call() -> bool:
    tensor = scattered(2)
    first = tensor.untyped_storage()._share_cuda_()
    before = exported()
    second = tensor.untyped_storage()._share_cuda_()
    same = first[1] == second[1] and exported() == before
    none = set(descriptors_in(first[1])) == {-1} and first[1][1:2] == b"f"
    many = len(descriptors_in(first[1])) >= PAGES
    release(first, second)
    return same and none and many


@check
def a_tensor_opened_twice_is_one_mapping() -> bool:
    tensor = scattered(3)
    ask("hold", "first", tensor)
    before = exported()
    addresses = {ask("hold", name, tensor) for name in ("second", "third")}
    once = exported() == before and len(addresses) == 1
    return once and all(ask("drop", name) for name in ("first", "second", "third"))


@check
def a_small_tensor_keeps_its_descriptor() -> bool:
    tensor = filled(4 * MIB, 4)
    shared = tensor.untyped_storage()._share_cuda_()
    kept = descriptors_in(shared[1])
    open_now = all(Path(f"/proc/self/fd/{number}").exists() for number in kept)
    release(shared)
    return bool(kept) and open_now and shared[1][1:2] == b"e"


@check
def it_is_opened_after_uninstall_and_while_a_graph_is_captured() -> bool:
    tensors = [scattered(tag) for tag in (10, 11)]
    after, meanwhile = (tensor.untyped_storage()._share_cuda_() for tensor in tensors)
    ferro_alloc.uninstall()
    answers = [ask("error_of_opening", after)]
    ferro_alloc.install()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        answers.append(ask("error_of_opening", meanwhile))
    release(after, meanwhile)
    return answers == [("", "")] * 2


@check
def a_driver_that_makes_no_descriptor_is_named() -> bool:
    tensor = scattered(5)
    shared = tensor.untyped_storage()._share_cuda_()
    sim.fault("cuMemExportToShareableHandle", after=3, result=REFUSED)
    kind, text = ask("error_of_opening", shared)
    sim.clear_faults()
    assert kind == "RuntimeError", (kind, text)
    assert "makes no file descriptor of it (cuMemExportToShareableHandle)" in text, text
    return bool(ask("check", tensor, 5))


@check
def released_memory_is_not_exported() -> bool:
    tensor = scattered(6)
    shared = tensor.untyped_storage()._share_cuda_()
    del tensor
    release(shared)
    kind, text = ask("error_of_opening", shared)
    return kind == "RuntimeError" and "has released it since" in text


@check
def a_receiver_without_a_free_descriptor_reports_it() -> bool:
    tensor = scattered(7)
    shared = tensor.untyped_storage()._share_cuda_()
    kind, text = ask("error_of_opening_without_room", shared)
    assert kind == "RuntimeError", (kind, text)
    return "ulimit -n" in text and bool(ask("check", tensor, 7))


_other.end()
finish()
