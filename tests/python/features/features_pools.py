"""Pools that programs make: MemPool and use_mem_pool."""

import ctypes
import gc
import threading

from tests.python.feature_checks import (
    FERRO,
    KIB,
    MIB,
    check,
    error_of,
    filled,
    finish,
    take,
    words,
)

import torch

from ferro_alloc import graphs

TOTAL = torch.cuda.mem_get_info()[1]


@check
def use_counts_of_a_pool():
    pool = torch.cuda.MemPool()
    counts = [pool.use_count()]
    with torch.cuda.use_mem_pool(pool):
        counts.append(pool.use_count())
        kept = take(MIB)
    counts.append(pool.use_count())
    assert kept.numel()
    return counts


def in_pool(pool, size):
    with torch.cuda.use_mem_pool(pool):
        return take(size)


@check
def an_allocator_of_a_pool_that_returns_nothing_is_named():
    word, pointer = ctypes.c_size_t, ctypes.c_void_p
    asked = []

    def allocate(size, device, stream):
        asked.append(size)
        return

    functions = (
        ctypes.CFUNCTYPE(pointer, word, ctypes.c_int, pointer)(allocate),
        ctypes.CFUNCTYPE(None, pointer, word, ctypes.c_int, pointer)(lambda *_: None),
    )
    outside = take(3 * MIB)
    own = torch._C._cuda_customAllocator(*(ctypes.cast(each, pointer).value for each in functions))
    pool = torch.cuda.MemPool(own)
    kind, text = error_of(lambda: in_pool(pool, 30 * MIB))
    assert outside.numel()
    requests = list(asked)
    for name in (f"({pool.id[0]}, {pool.id[1]})", "'symmetric'") if FERRO else ():
        assert f"POOL ALLOCATOR: the allocator of the pool {name} returned no memory" in text, text
        assert "the driver refused" not in text, text
        graphs.graph_pool_handle("symmetric", mem_pool=pool)
        text = error_of(lambda: in_pool(pool, 30 * MIB))[1]
    return kind, requests


@check
def a_pool_owns_what_is_allocated_in_it():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = take(3 * MIB)
    outside = take(3 * MIB)
    owned = [(s["address"], s["address"] + s["total_size"]) for s in pool.snapshot()]
    assert all(s["segment_pool_id"] == tuple(pool.id) for s in pool.snapshot())
    assert any(low <= inside.data_ptr() < high for low, high in owned)
    assert not any(low <= outside.data_ptr() < high for low, high in owned)


@check
def a_pool_keeps_its_memory_until_it_is_deleted():
    reserved = torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = take(30 * MIB)
    del kept
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() >= reserved + 30 * MIB
    del pool
    gc.collect()
    assert torch.cuda.memory_reserved() == reserved


@check
def tensors_outlive_their_pool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = filled(4 * MIB, 9)
    del pool
    assert torch.equal(kept.cpu(), words(9, 4 * MIB))
    del kept
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


@check
def nested_pools():
    outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(outer):
        first = take(20 * MIB)
        with torch.cuda.use_mem_pool(inner):
            second = take(20 * MIB)
        third = take(20 * MIB)

    def holds(pool, tensor):
        return any(s["address"] <= tensor.data_ptr() < s["address"] + s["total_size"]
                   for s in pool.snapshot())  # fmt: skip

    pools = [outer, inner]
    return [[holds(pool, tensor) for pool in pools] for tensor in (first, second, third)]


@check
def the_same_pool_twice_is_refused():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kind, text = error_of(lambda: torch.cuda.use_mem_pool(pool).__enter__())
    assert "already recording to mempool_id" in text
    return kind


@check
def pool_without_splits():
    pool = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(pool):
        kept = [take(MIB) for _ in range(4)]
        kept.append(take(32 * MIB))
    page = 2 * MIB
    assert len({tensor.data_ptr() // page for tensor in kept}) == 5
    # Libraries that register buffers look for the allocation around a pointer.
    offsets = [tensor.untyped_storage()._share_cuda_()[3] for tensor in kept]
    return [offsets, sorted(segment["total_size"] for segment in pool.snapshot())]


@check
def pool_used_before_failing():
    pool = torch.cuda.MemPool(use_on_oom=True)
    other = torch.cuda.MemPool()
    for owner in (pool, other):
        with torch.cuda.use_mem_pool(owner):
            take(TOTAL // 4)
    kept = take(TOTAL // 4)
    more = take(TOTAL // 4 - 64 * MIB)
    third = take(TOTAL // 4 - 64 * MIB)
    assert error_of(lambda: take(TOTAL // 4 - 64 * MIB))[0] == "OutOfMemoryError"
    assert kept.numel() and more.numel() and third.numel()  # noqa: PT018


@check
def pools_on_several_threads():
    errors, kept_pools = [], []

    def work(tag):
        try:
            pool = torch.cuda.MemPool()
            for _ in range(30):
                with torch.cuda.use_mem_pool(pool):
                    kept = filled(256 * KIB, tag)
                owned = [(s["address"], s["total_size"]) for s in pool.snapshot()]
                address = kept.data_ptr()
                assert any(base <= address < base + size for base, size in owned)
                assert torch.equal(kept.cpu(), words(tag, 256 * KIB))
                del kept
            if not FERRO:
                # Native aborts when a pool is deleted while another thread uses one.
                kept_pools.append(pool)
        except BaseException as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.empty_cache()
    assert errors == []


@check
def pool_threads_do_not_leak_into_each_other():
    pool = torch.cuda.MemPool()
    outside = []

    def work():
        outside.append(take(3 * MIB))

    with torch.cuda.use_mem_pool(pool):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    address = outside[0].data_ptr()
    return any(s["address"] <= address < s["address"] + s["total_size"] for s in pool.snapshot())


finish()
