"""Statistics, limits, failures and snapshots."""

import itertools
import pickle
import random
import threading

from tests.python.feature_checks import (
    FERRO,
    KIB,
    MIB,
    check,
    error_of,
    filled,
    finish,
    statistic,
    take,
    words,
)

import torch

TOTAL = torch.cuda.mem_get_info()[1]


@check
def everything_is_returned_by_empty_cache():
    free = torch.cuda.mem_get_info()[0]
    kept = [take(size) for size in (1, 512, 513, 3 * MIB, 40 * MIB)]
    assert torch.cuda.mem_get_info()[0] < free
    del kept
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    assert torch.cuda.mem_get_info()[0] == free


@check
def requests_that_fit_get_their_former_addresses():
    draw = random.Random(7)
    sequences = {
        "equal": [8 * MIB] * 9,
        "of 3 MiB": [3 * MIB] * 40,
        "mixed": [draw.randrange(3 * MIB, 39 * MIB) // 2 for _ in range(30)],
        "small": [4 * KIB] * 100,
        "of half a MiB": [512 * KIB] * 300,
        "of one MiB": [MIB] * 100,
        "many": [512] * 1500,
        "small and mixed": [draw.randrange(512, 500 * KIB) for _ in range(200)],
    }
    orders = {
        "in order": list,
        "in reverse": lambda kept: kept[::-1],
        "in random order": lambda kept: draw.sample(kept, len(kept)),
    }
    side = torch.cuda.Stream()
    places = {
        "main stream": lambda: torch.cuda.stream(torch.cuda.current_stream()),
        "side stream": lambda: torch.cuda.stream(side),
        "MemPool": lambda: torch.cuda.use_mem_pool(pool),
    }
    repeats = {}
    for place, name, order in itertools.product(places, sequences, orders):
        torch.cuda.empty_cache()
        pool, rounds = torch.cuda.MemPool(), []
        for _ in range(4):
            with places[place]():
                kept = [take(size) for size in sequences[name]]
            rounds.append([each.data_ptr() for each in kept])
            kept = orders[order](kept)
            while kept:
                kept.pop(0)
        repeats[f"{name}, freed {order}, {place}"] = rounds == rounds[:1] * 4
    assert all(repeats.values()) or not FERRO, repeats
    # Native need not repeat these; of torch 2.12 it does not repeat the last two.
    others = ("mixed", "of half a MiB, freed in random", "of one MiB, freed in random")
    return {name: found for name, found in repeats.items() if not any(o in name for o in others)}


@check
def block_sizes():
    sizes = []
    for size in (1, 511, 512, 513, 4 * KIB, 100_000, MIB):
        before = torch.cuda.memory_allocated()
        kept = take(size)
        sizes.append(torch.cuda.memory_allocated() - before)
        del kept
    return sizes


@check
def keys_of_the_statistics():
    return sorted(torch.cuda.memory_stats())


@check
def requested_bytes_and_counts():
    names = [(name, column) for name in ("requested_bytes", "allocation", "active")
             for column in ("current", "allocated", "freed")]  # fmt: skip
    before = {pair: statistic(*pair) for pair in names}
    kept = [take(1000 * (i + 1)) for i in range(20)]
    del kept[::2]
    return {"/".join(pair): statistic(*pair) - before[pair] for pair in names}


@check
def allocated_falls_at_the_free_and_active_when_the_other_stream_is_done():
    side, kept = torch.cuda.Stream(), take(4 * KIB)
    before = statistic("allocated_bytes"), statistic("active_bytes")
    kept.record_stream(side)
    del kept
    assert statistic("allocated_bytes") - before[0] == -4 * KIB
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert statistic("active_bytes") - before[1] == -4 * KIB


@check
def peaks_and_their_reset():
    base = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    take(8 * MIB)
    assert torch.cuda.max_memory_allocated() - base >= 8 * MIB
    assert torch.cuda.max_memory_reserved() >= torch.cuda.memory_reserved() >= 8 * MIB
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
    assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved()
    return statistic("allocation", "peak") - statistic("allocation")


@check
def accumulated_statistics_and_their_reset():
    torch.cuda.reset_accumulated_memory_stats()
    stats = torch.cuda.memory_stats()
    for key in ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc"):
        assert stats[key] == 0, key
    take(5000)
    assert statistic("allocation", "allocated") == statistic("allocation", "freed") == 1
    assert torch.cuda.memory_stats()["num_device_alloc"] >= 1
    return statistic("requested_bytes", "allocated")


@check
def summary():
    text = torch.cuda.memory_summary()
    assert "CUDA OOMs" in text
    assert "Allocated memory" in text
    return len(text.splitlines()), len(torch.cuda.memory_summary(abbreviated=True).splitlines())


@check
def accelerator_calls_reach_the_allocator():
    take(5 * MIB)
    kept = take(7 * MIB)
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated() > 0
    assert torch.accelerator.memory_reserved() == torch.cuda.memory_reserved() > 0
    # Later versions of torch know more statistics of CUDA than of accelerators.
    assert torch.accelerator.memory_stats().items() <= torch.cuda.memory_stats().items()
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == torch.cuda.memory_allocated()
    torch.accelerator.reset_accumulated_memory_stats()
    assert statistic("allocation", "allocated") == 0
    del kept
    torch.accelerator.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    assert torch.accelerator.get_memory_info() == torch.cuda.mem_get_info()


@check
def out_of_memory_error():
    kept = take(MIB)
    caught: list[BaseException] = []
    try:
        take(2 * TOTAL)
    except torch.OutOfMemoryError as error:
        caught.append(error)
    assert [type(error) for error in caught] == [torch.cuda.OutOfMemoryError]
    assert isinstance(caught[0], RuntimeError)
    (text,) = caught[0].args
    for part in (
        "CUDA out of memory. ",
        "Tried to allocate",
        "has a total capacity of",
        "is free. ",
    ):
        assert part in text, (part, text)
    assert "reserved by PyTorch but unallocated." in text
    assert ("ferro_alloc: verdict" in text) == FERRO, text
    if FERRO:
        assert text.index("reserved by PyTorch") < text.index("ferro_alloc: verdict")
    # The error state of CUDA is clean, and memory is there as before.
    torch.cuda.synchronize()
    assert take(MIB).numel() == kept.numel()
    return text.split(" which ")[0]


@check
def a_hundred_failures_leave_the_process_usable():
    free = torch.cuda.mem_get_info()[0]
    torch.cuda.reset_accumulated_memory_stats()
    kept = take(TOTAL // 2)
    for _ in range(100):
        assert error_of(lambda: take(TOTAL // 2 + 4 * MIB))[0] == "OutOfMemoryError"
    assert torch.cuda.memory_stats()["num_ooms"] == 100
    assert kept.numel() == TOTAL // 2
    del kept
    assert take(TOTAL // 2 + 4 * MIB).numel() > 0
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] == free


@check
def more_than_an_exabyte():
    return error_of(lambda: take(1 << 60))


@check
def batch_size_finder():
    """Halves the batch until it fits, as libraries do."""
    size, tries = 4 * TOTAL, 0
    while True:
        try:
            kept = take(size)
            break
        except RuntimeError as error:
            if len(error.args) != 1 or "CUDA out of memory." not in error.args[0]:
                raise
            size, tries = size // 2, tries + 1
    assert kept.numel() == size
    return tries


@check
def cached_memory_of_other_sizes_and_streams_is_used_before_failing():
    streams = [torch.cuda.Stream() for _ in range(3)]
    for stream in streams:
        with torch.cuda.stream(stream):
            kept = [take(TOTAL // 64) for _ in range(20)]
            del kept
    torch.cuda.synchronize()
    return take(TOTAL * 7 // 8).numel() > 0


@check
def limit_of_the_process():
    torch.cuda.set_per_process_memory_fraction(0.25)
    assert abs(torch.cuda.get_per_process_memory_fraction() - 0.25) < 1e-6
    assert take(TOTAL // 4 - 4 * MIB).numel()
    torch.cuda.empty_cache()
    kind, text = error_of(lambda: take(TOTAL // 4 + 4 * MIB))
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert kind == "OutOfMemoryError"
    assert "allowed; " in text
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    assert take(TOTAL // 4 + 4 * MIB).numel()
    return error_of(lambda: torch.cuda.set_per_process_memory_fraction(1.5))[0]


@check
def addresses_freed_for_another_stream_are_reused_when_it_is_done():
    stream, side = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        kept = take(3000)
        address = kept.data_ptr()
        kept.record_stream(side)
        del kept
        torch.cuda.synchronize()
        torch.cuda.memory_stats()
        again = take(3000)
        other = take(3000)
    assert address in (again.data_ptr(), other.data_ptr())


@check
def raw_allocations():
    before = statistic("requested_bytes", "allocated")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        pointer = torch.cuda.caching_allocator_alloc(12_345)
    grown = statistic("requested_bytes", "allocated") - before
    torch.cuda.caching_allocator_delete(pointer)
    kind, text = error_of(lambda: torch.cuda.caching_allocator_delete(pointer))
    assert kind == "RuntimeError"
    assert "invalid device pointer" in text
    kind, text = error_of(lambda: torch.cuda.caching_allocator_delete(0x7000))
    assert "invalid device pointer" in text
    return grown


@check
def empty_tensors_and_null():
    before = statistic("allocation")
    kept = torch.empty(0, device="cuda")
    assert kept.data_ptr() == 0
    kept.record_stream(torch.cuda.Stream())
    torch.cuda.caching_allocator_delete(0)
    return statistic("allocation") - before


@check
def storages_that_grow_and_shrink():
    kept = filled(8 * KIB, 5)
    kept.untyped_storage().resize_(64 * KIB)
    assert torch.equal(kept.cpu(), words(5, 8 * KIB))
    kept.untyped_storage().resize_(0)
    assert kept.untyped_storage().nbytes() == 0


@check
def tensors_of_others_are_left_alone():
    own = take(MIB)
    through_dlpack = torch.from_dlpack(own)
    through_dlpack.record_stream(torch.cuda.Stream())
    interface = type("Foreign", (), {"__cuda_array_interface__": own.__cuda_array_interface__})
    foreign = torch.as_tensor(interface(), device="cuda")
    foreign.record_stream(torch.cuda.Stream())
    del through_dlpack, foreign
    assert own.data_ptr()


@check
def threads_that_die():
    kept = []

    def work(tag):
        with torch.cuda.stream(torch.cuda.Stream()):
            kept.append(filled(64 * KIB, tag))
            take(MIB)
            torch.cuda.current_stream().synchronize()

    for tag in range(40):
        thread = threading.Thread(target=work, args=(tag,))
        thread.start()
        thread.join()
    assert all(torch.equal(t.cpu(), words(tag, 64 * KIB)) for tag, t in enumerate(kept))
    live = statistic("allocation")
    kept.clear()
    return live - statistic("allocation")


@check
def snapshot_tiles_and_names():
    side = torch.cuda.Stream()
    kept = [take(size) for size in (100, 5 * MIB, 700, 3 * MIB, 20 * MIB)]
    waiting = take(2000)
    waiting.record_stream(side)
    del kept[1], waiting
    snapshot = torch.cuda.memory._snapshot()
    states = set()
    last = {}
    for segment in snapshot["segments"]:
        address = segment["address"]
        assert address >= last.get(segment["device"], 0)
        for block in segment["blocks"]:
            assert block["address"] == address
            assert block["size"] > 0
            address += block["size"]
            states.add(block["state"])
        assert address == segment["address"] + segment["total_size"]
        last[segment["device"]] = address
        allocated = [b for b in segment["blocks"] if b["state"] == "active_allocated"]
        assert segment["allocated_size"] == sum(b["size"] for b in allocated)
        assert segment["segment_pool_id"] == (0, 0) or segment["segment_pool_id"] != (0, 0)
    assert {"active_allocated", "inactive"} <= states
    pointers = {t.data_ptr(): t.numel() for t in kept}
    blocks = {b["address"]: b for s in snapshot["segments"] for b in s["blocks"]}
    for pointer, size in pointers.items():
        assert blocks[pointer]["requested_size"] == size
        assert blocks[pointer]["state"] == "active_allocated"
    live = sum(b["size"] for b in blocks.values() if b["state"] == "active_allocated")
    assert live == torch.cuda.memory_allocated()
    assert sum(s["total_size"] for s in snapshot["segments"]) == torch.cuda.memory_reserved()
    return sorted(snapshot), sorted(snapshot["segments"][0]), sorted(blocks[next(iter(pointers))])


@check
def snapshot_opened_by_the_viewer():
    from torch.cuda import _memory_viz as viz

    kept = [take(size) for size in (100, 5 * MIB, 700)]
    snapshot = pickle.loads(pickle.dumps(torch.cuda.memory._snapshot()))
    assert "segments" in viz.segsum(snapshot)
    assert viz.trace(snapshot) is not None
    assert "<html>" in viz.segment_plot(snapshot)
    assert "<html>" in viz.trace_plot(snapshot)

    def lines(text):
        return text

    assert "active_allocated" in viz.memory(snapshot, format_flamegraph=lines)
    assert viz.segments(snapshot, format_flamegraph=lines)
    assert len(kept) == 3


@check
def settings_in_the_snapshot():
    torch.cuda.memory._set_allocator_settings("roundup_power2_divisions:4")
    before = torch.cuda.memory_allocated()
    kept = take(5000)
    rounded = torch.cuda.memory_allocated() - before
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    torch.cuda.memory._set_allocator_settings("roundup_power2_divisions:1")
    assert kept.numel()
    assert settings["roundup_power2_divisions"]
    return rounded


@check
def each_power_of_two_has_its_divisions():
    setting = "roundup_power2_divisions:[1:2,2:4,4:8,8:2,16:16,32:2,64:4,256:8,1024:16,>:1]"
    torch.cuda.memory._set_allocator_settings(setting)
    taken = []
    for power in range(9, 29):
        for size in (1 << power, (1 << power) + 1, (2 << power) - 1):
            before = torch.cuda.memory_allocated()
            kept = torch.empty(size, dtype=torch.uint8, device="cuda")
            taken.append(torch.cuda.memory_allocated() - before)
            del kept
    torch.cuda.memory._set_allocator_settings("roundup_power2_divisions:1")
    return taken


@check
def lazy_clones_copy_when_they_are_written():
    original = filled(64 * KIB, 5)
    clone = torch._lazy_clone(original)
    before = torch.cuda.memory_allocated()
    clone.copy_(words(9, 64 * KIB).pin_memory())
    taken = torch.cuda.memory_allocated() - before
    torch.cuda.synchronize()
    right = [
        torch.equal(original.cpu(), words(5, 64 * KIB)),
        torch.equal(clone.cpu(), words(9, 64 * KIB)),
    ]
    return taken, right


@check
def nested_statistics_are_the_flat_ones():
    kept = take(3 * MIB)
    nested = torch.cuda.memory_stats_as_nested_dict()
    flat = torch.cuda.memory_stats()
    assert nested["allocated_bytes"]["all"]["current"] == flat["allocated_bytes.all.current"] > 0
    del kept
    return sorted(nested)


@check
def the_allocator_in_use_cannot_be_swapped():
    own = torch.cuda.memory.CUDAPluggableAllocator.__new__(torch.cuda.memory.CUDAPluggableAllocator)
    own._allocator = torch._C._cuda_customAllocator(1, 1)
    return error_of(lambda: torch.cuda.memory.change_current_allocator(own))


finish()
