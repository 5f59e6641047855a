"""Several devices: each has its own memory, and calls for one leave the others alone."""

import threading

from tests.python.feature_checks import (
    KIB,
    MIB,
    check,
    error_of,
    finish,
    take,
    words,
)

import torch

from ferro_alloc import sim

COUNT = torch.cuda.device_count()
LAST = COUNT - 1


def used():
    """The memory in use by the driver, including contexts."""
    return [device.allocated for device in sim.memory()]


def allocated():
    return [torch.cuda.memory_allocated(i) for i in range(COUNT)]


def take_on(index, size):
    with torch.cuda.device(index):
        return take(size)


def filled_on(index, size, tag):
    return words(tag, size).pin_memory().to(f"cuda:{index}", non_blocking=True)


@check
def a_device_that_is_not_used_is_not_touched():
    """Must be the first check: there is neither a context nor memory on the other devices."""
    kept = [take(3 * MIB), torch.empty(MIB, device="cuda:0")]
    torch.cuda.synchronize()
    torch.cuda.memory_stats()
    torch.cuda.memory_stats(LAST)
    torch.cuda.memory._snapshot()
    torch.cuda.empty_cache()
    error_of(lambda: take(1 << 40))
    torch.cuda.empty_cache()
    assert kept
    return [amount > 0 for amount in used()]


@check
def memory_of_each():
    before = allocated()
    kept = [take_on(i, (i + 1) * 512 * KIB) for i in range(COUNT)]
    grown = [after - start for after, start in zip(allocated(), before, strict=True)]
    devices = [tensor.device.index for tensor in kept]
    peaks = [torch.cuda.max_memory_allocated(i) >= (i + 1) * 512 * KIB for i in range(COUNT)]
    del kept
    return grown, devices, peaks, [a - b for a, b in zip(allocated(), before, strict=True)]


@check
def contents_of_each():
    kept = [filled_on(i, MIB, 100 * i) for i in range(COUNT)]
    return [int(tensor.cpu()[5]) for tensor in kept]


@check
def tensors_die_on_any_device():
    before = allocated()
    kept: list[torch.Tensor] = []
    for i in range(COUNT):
        own = [take_on(i, 3 * MIB)]
        with torch.cuda.device((i + 1) % COUNT):
            own.clear()
    assert allocated() == before

    def drop():
        torch.cuda.set_device(LAST)
        kept.clear()

    kept[:] = [take_on(i, 3 * MIB) for i in range(COUNT)]
    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    return allocated() == before, torch.cuda.current_device()


@check
def a_stream_of_another_device():
    """This is the only such call of PyTorch; the block is on the given device."""
    stream = torch.cuda.Stream(LAST)
    before = allocated()
    kinds, grown = [], []
    for device in (0, LAST):
        pointers = []
        kind, _ = error_of(
            lambda device=device, kept=pointers: kept.append(
                torch.cuda.caching_allocator_alloc(MIB, device=device, stream=stream)
            )
        )
        kinds.append(kind)
        grown.append([after - start for after, start in zip(allocated(), before, strict=True)])
        for pointer in pointers:
            torch.cuda.caching_allocator_delete(pointer)
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(LAST)
    return kinds, grown, allocated() == before


@check
def recording_a_stream_of_another_device():
    kept, stream = filled_on(0, MIB, 5), torch.cuda.Stream(LAST)
    kind, _ = error_of(lambda tensor=kept: tensor.record_stream(stream))
    good = torch.equal(kept.cpu(), words(5, MIB))
    del kept
    torch.cuda.synchronize(LAST)
    torch.cuda.synchronize(0)
    torch.cuda.empty_cache()
    return kind, good


@check
def freed_on_another_device_with_work_on_a_stream():
    before = allocated()
    for i in range(COUNT):
        with torch.cuda.device(i):
            side = torch.cuda.Stream()
            kept = filled_on(i, MIB, i)
            kept.record_stream(side)
        with torch.cuda.device((i + 1) % COUNT):
            del kept
    for i in range(COUNT):
        torch.cuda.synchronize(i)
        torch.cuda.memory_stats(i)
    return allocated() == before


@check
def a_full_device_is_no_matter_to_the_others():
    total = torch.cuda.mem_get_info(0)[1]
    kept = [take_on(0, 16 * MIB)]
    kind = ""
    while not kind:
        kind, text = error_of(lambda: kept.append(take_on(0, 16 * MIB)))
    rooms = [take_on(i, total // 2).numel() == total // 2 for i in range(1, COUNT)]
    other = error_of(lambda: take_on(LAST, 2 * total))[1]
    return kind, "GPU 0 has a total" in text, f"GPU {LAST} has a total" in other, rooms


@check
def a_limit_of_each():
    total = torch.cuda.mem_get_info(0)[1]
    torch.cuda.set_per_process_memory_fraction(0.25, LAST)
    kinds = [error_of(lambda i=i: take_on(i, total // 2))[0] for i in range(COUNT)]
    torch.cuda.set_per_process_memory_fraction(1.0, LAST)
    return kinds, [torch.cuda.get_per_process_memory_fraction(i) for i in range(COUNT)]


@check
def pools_and_graphs_of_each():
    seen = []
    for i in range(COUNT):
        with torch.cuda.device(i):
            pool, source = torch.cuda.MemPool(), filled_on(i, MIB, i)
            with torch.cuda.use_mem_pool(pool):
                inside = take(3 * MIB)
            graph = torch.cuda.CUDAGraph()
            # The default stream would be one of the first device that captured.
            with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
                result = source.clone()
            graph.replay()
            seen.append(
                (
                    torch.equal(result.cpu(), words(i, MIB)),
                    inside.device.index,
                    {s["device"] for s in pool.snapshot()} == {i},
                )
            )
            del pool, inside, graph, result
    return seen


@check
def a_pool_that_is_used_on_another_device():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside, outside = take(3 * MIB), take_on(LAST, 3 * MIB)
    devices = {segment["device"] for segment in pool.snapshot()}
    return inside.device.index, outside.device.index, sorted(devices)


@check
def devices_that_are_not_there():
    return [
        error_of(call)[0]
        for call in (
            lambda: torch.cuda.memory_stats(COUNT),
            lambda: torch.cuda.set_per_process_memory_fraction(0.5, COUNT),
            lambda: torch.cuda.caching_allocator_alloc(MIB, device=COUNT),
            lambda: torch.cuda.reset_peak_memory_stats(COUNT),
        )
    ]


@check
def snapshots_show_all():
    kept = [take_on(i, (i + 2) * MIB) for i in range(COUNT)]
    taken = torch.cuda.memory._snapshot()
    sums = [0] * COUNT
    for segment in taken["segments"]:
        sums[segment["device"]] += segment["total_size"]
    assert sums == [torch.cuda.memory_reserved(i) for i in range(COUNT)]
    assert kept
    return len(taken["device_traces"])


@check
def everything_is_given_back():
    for i in range(COUNT):
        torch.cuda.synchronize(i)
    torch.cuda.empty_cache()
    return [torch.cuda.memory_reserved(i) for i in range(COUNT)], allocated()


finish()
