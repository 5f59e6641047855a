"""Queries that only C++ programs can make, through the library named as second argument."""

import ctypes
import sys

from tests.python.feature_checks import FERRO, MIB, error_of, finish, since, take

import torch

TOTAL = torch.cuda.mem_get_info()[1]
probe = ctypes.CDLL(sys.argv[2])
probe.probe_has_context.argtypes = [ctypes.c_void_p]


def has_context(tensor, offset=0):
    return probe.probe_has_context(tensor.data_ptr() + offset)


@since(12)
def contexts_of_pointers():
    early = take(MIB)
    torch.cuda.memory._record_memory_history("state")
    try:
        x = take(MIB)
        seen = [has_context(early), has_context(x), probe.probe_has_context(1 << 24)]
        address = x.data_ptr()
        del x
        seen.append(probe.probe_has_context(address))
        y = take(MIB)
    finally:
        torch.cuda.memory._record_memory_history(None)
    late = take(MIB)
    return [*seen, has_context(y), has_context(late)]


@since(12)
def contexts_of_pointers_into_a_tensor():
    torch.cuda.memory._record_memory_history("all")
    try:
        x = take(MIB)
        return has_context(x), has_context(x, 512), has_context(x, MIB - 1)
    finally:
        torch.cuda.memory._record_memory_history(None)


@since(12)
def observers_hear_of_rejections():
    probe.probe_watch_rejections()
    kept = take(TOTAL // 4)
    torch._C._accelerator_setAllocatorSettings(
        "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5"
    )
    try:
        kind, text = error_of(lambda: take(TOTAL // 2))
    finally:
        torch._C._accelerator_setAllocatorSettings(
            "throw_on_cudamalloc_oom:False,per_process_memory_fraction:1.0"
        )
    last = (ctypes.c_int64 * 4)()
    count = probe.probe_rejections(last)
    assert kept.numel()
    if FERRO:  # native of 2.13 and 2.14 notifies no observer here
        assert (count, list(last)) == (1, [0, TOTAL // 2, TOTAL // 4, TOTAL])
    return kind, "preemptively" in text


finish()
