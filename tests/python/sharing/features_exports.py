"""The driver queries of libraries that register or export memory, for memory mapped in parts.

UCX, NCCL and the like pass pointers of tensors to `cuMemGetAddressRange`,
`cuMemRetainAllocationHandle` and `cuMemGetHandleForAddressRange`. Under native the program runs
with `expandable_segments:True`.
"""

import ctypes
import os
from itertools import pairwise
from typing import Any

from tests.python.feature_checks import (
    FERRO,
    KIB,
    MIB,
    check,
    churn_under_pressure,
    filled,
    finish,
    take,
    words,
)

import torch

SUCCESS, INVALID_VALUE = 0, 1
DMA_BUF, DESCRIPTOR = 1, 1
GRANULARITY, HOST_PAGE = 2 * MIB, os.sysconf("SC_PAGESIZE")
cuda = ctypes.CDLL("libcuda.so.1")


class Properties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("device", ctypes.c_int),
        ("meta", ctypes.c_void_p),
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


def range_of(address: int) -> tuple[int, int]:
    """The start and the size of the driver's allocation around an address."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    result = cuda.cuMemGetAddressRange_v2(
        ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address)
    )
    assert result == SUCCESS, result
    return base.value, size.value


def retain(address: int) -> tuple[int, int]:
    """The result, and the handle, to which this adds a reference."""
    handle = ctypes.c_uint64()
    result = cuda.cuMemRetainAllocationHandle(ctypes.byref(handle), ctypes.c_void_p(address))
    return result, handle.value


def release(handle: int) -> None:
    assert cuda.cuMemRelease(ctypes.c_uint64(handle)) == SUCCESS


def handle_at(address: int) -> int:
    result, handle = retain(address)
    assert result == SUCCESS, result
    release(handle)
    return handle


def dma_buf(address: int, size: int) -> tuple[int, int]:
    """The result, and the size of the range behind the descriptor."""
    descriptor = ctypes.c_int(-1)
    result = cuda.cuMemGetHandleForAddressRange(
        ctypes.byref(descriptor),
        ctypes.c_uint64(address),
        ctypes.c_size_t(size),
        ctypes.c_int(DMA_BUF),
        ctypes.c_uint64(0),
    )
    if result != SUCCESS:
        return result, 0
    length = os.lseek(descriptor.value, 0, os.SEEK_END)
    os.close(descriptor.value)
    return result, length


def span_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The host pages around a tensor."""
    begin = tensor.data_ptr() // HOST_PAGE * HOST_PAGE
    end = -(-(tensor.data_ptr() + tensor.nbytes) // HOST_PAGE) * HOST_PAGE
    return begin, end


def ranges_behind(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """Finds ranges as libraries do: from the end of each to the next."""
    found = [range_of(tensor.data_ptr())]
    while sum(found[-1]) < tensor.data_ptr() + tensor.nbytes:
        found.append(range_of(sum(found[-1])))
    return found


def set_expandable(value: bool) -> None:
    torch._C._accelerator_setAllocatorSettings(f"expandable_segments:{value}")


@check
def consecutive_ranges_cover_a_tensor() -> Any:
    answers = []
    for size in (512, 100 * KIB, 3 * MIB, 41 * MIB):
        tensor = take(size)
        ranges = ranges_behind(tensor)
        joined = all(sum(a) == b[0] for a, b in pairwise(ranges))
        whole = all(base % GRANULARITY == length % GRANULARITY == 0 for base, length in ranges)
        within = ranges[0][0] <= tensor.data_ptr()
        answers.append((joined, whole, within))
    return answers


@check
def any_address_of_a_range_has_its_handle() -> Any:
    tensor = take(41 * MIB)
    ranges = ranges_behind(tensor)
    handles = [handle_at(base) for base, _ in ranges]
    ends = [handle_at(base + length - 1) for base, length in ranges]
    middles = [handle_at(base + length // 2 + 1) for base, length in ranges]
    return handles == ends == middles, len(set(handles)) == len(handles)


@check
def handles_have_the_properties_that_export_and_rdma_need() -> Any:
    _, handle = retain(take(4 * MIB).data_ptr())
    found = Properties()
    result = cuda.cuMemGetAllocationPropertiesFromHandle(
        ctypes.byref(found), ctypes.c_uint64(handle)
    )
    release(handle)
    exported = bool(found.handle_types & DESCRIPTOR)
    return result, found.type, found.location_type, found.device, exported, found.rdma


@check
def a_retained_handle_is_exported_and_mapped_elsewhere() -> Any:
    size = 4 * MIB
    tensor = filled(size, 3)
    torch.cuda.synchronize()
    begin, length = range_of(tensor.data_ptr())
    _, handle = retain(tensor.data_ptr())
    descriptor = ctypes.c_int(-1)
    results = [
        cuda.cuMemExportToShareableHandle(
            ctypes.byref(descriptor),
            ctypes.c_uint64(handle),
            ctypes.c_int(DESCRIPTOR),
            ctypes.c_uint64(0),
        )
    ]
    os.close(descriptor.value)
    alias = ctypes.c_uint64()
    sizes = ctypes.c_size_t(length), ctypes.c_size_t(0)
    nowhere, none = ctypes.c_uint64(0), ctypes.c_uint64(0)
    access = (ctypes.c_int * 3)(1, 0, 3)  # location type device, device 0, read and write access
    results += [
        cuda.cuMemAddressReserve(ctypes.byref(alias), *sizes, nowhere, none),
        cuda.cuMemMap(alias, *sizes, ctypes.c_uint64(handle), none),
        cuda.cuMemSetAccess(alias, sizes[0], ctypes.byref(access), ctypes.c_size_t(1)),
    ]
    release(handle)
    first = (ctypes.c_int * 4)()
    offset = tensor.data_ptr() - begin
    at = ctypes.c_uint64(alias.value + offset)
    results.append(cuda.cuMemcpyDtoH_v2(first, at, ctypes.c_size_t(16)))
    results.append(cuda.cuMemUnmap(alias, sizes[0]))
    results.append(cuda.cuMemAddressFree(alias, sizes[0]))
    return results, list(first)


@check
def a_reference_keeps_memory_that_the_allocator_has_released() -> Any:
    tensor = take(41 * MIB)
    ranges = ranges_behind(tensor)
    inner = ranges[len(ranges) // 2]
    _, handle = retain(inner[0])
    del tensor
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    release(handle)
    grown = torch.cuda.mem_get_info()[0] - before
    return grown == inner[1], retain(inner[0])[0]


@check
def a_tensor_is_one_dma_buf_on_any_handles() -> Any:
    answers = []
    for size in (512, 3 * MIB, 41 * MIB):
        begin, end = span_of(take(size))
        answers.append((dma_buf(begin, end - begin), end - begin))
    return [result == (SUCCESS, length) for result, length in answers]


@check
def ranges_without_a_dma_buf() -> Any:
    tensor = take(4 * MIB)
    begin, end = span_of(tensor)
    last = range_of(end - 1)
    while (found := retain(sum(last)))[0] == SUCCESS:
        release(found[1])
        last = range_of(sum(last))
    unmapped = sum(last)
    return [
        dma_buf(begin + 8, HOST_PAGE)[0],
        dma_buf(begin, HOST_PAGE + 8)[0],
        dma_buf(begin, 0)[0],
        dma_buf(unmapped - HOST_PAGE, 2 * HOST_PAGE)[0],
        dma_buf(unmapped, HOST_PAGE)[0],
    ]


@check
def live_memory_keeps_its_handles_while_other_memory_moves() -> Any:
    kept = [filled(5 * MIB, 7), filled(22 * MIB, 8)]
    before = [[handle_at(base) for base, _ in ranges_behind(tensor)] for tensor in kept]
    churn_under_pressure(24)
    torch.cuda.empty_cache()
    after = [[handle_at(base) for base, _ in ranges_behind(tensor)] for tensor in kept]
    intact = [torch.equal(t.cpu(), words(7 + i, t.nbytes)) for i, t in enumerate(kept)]
    return before == after, intact


def about_plain(tensor: torch.Tensor) -> Any:
    """Facts of memory from cuMemAlloc: it has no handle, one range, and a dma-buf for the range."""
    base, size = range_of(tensor.data_ptr())
    length = -(-size // HOST_PAGE) * HOST_PAGE
    legacy = (ctypes.c_char * 64)()
    return [
        retain(tensor.data_ptr())[0],
        base % 512 == 0 and base <= tensor.data_ptr(),
        tensor.data_ptr() + tensor.nbytes <= base + size,
        dma_buf(base, length) == (SUCCESS, length),
        cuda.cuIpcGetMemHandle(ctypes.byref(legacy), ctypes.c_uint64(base)),
    ]


@check
def plain_memory_while_expandable_segments_are_off() -> Any:
    set_expandable(False)
    tensors = [take(size) for size in (3 * MIB, 41 * MIB)]
    answers = [about_plain(tensor) for tensor in tensors]
    sizes = [range_of(tensor.data_ptr())[1] for tensor in tensors]
    set_expandable(True)
    return answers, sizes


@check
def each_block_of_a_pool_without_splits_is_one_allocation_that_stays() -> Any:
    # Under native this holds only for plain memory; here it holds for all memory.
    set_expandable(FERRO)
    pool = torch.cuda.MemPool(no_split=True)
    sizes = (300 * KIB, 300 * KIB, 3 * MIB, 12 * MIB, 41 * MIB)
    with torch.cuda.use_mem_pool(pool):
        kept = [filled(size, tag) for tag, size in enumerate(sizes)]
    set_expandable(True)
    before = [range_of(tensor.data_ptr()) for tensor in kept]
    if FERRO:
        # Native's segments.
        segments = [2 * MIB, 2 * MIB, 20 * MIB, 12 * MIB, 42 * MIB]
        assert [size for _, size in before] == segments, before
    churn_under_pressure(24)
    torch.cuda.empty_cache()
    return (
        [about_plain(tensor) for tensor in kept],
        [base == tensor.data_ptr() for (base, _), tensor in zip(before, kept, strict=True)],
        len(set(before)) == len(kept),
        before == [range_of(tensor.data_ptr()) for tensor in kept],
        [torch.equal(t.cpu(), words(tag, t.nbytes)) for tag, t in enumerate(kept)],
    )


finish()
