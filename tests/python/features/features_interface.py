"""The allocator interface as C++ programs call it, through the library named as second argument."""

import ctypes
import sys
from functools import partial
from threading import Thread

from tests.python.feature_checks import (
    ALLOCATOR,
    KIB,
    MIB,
    check,
    check_invariants,
    error_of,
    finish,
    statistic,
    take,
)

import torch

TOTAL = torch.cuda.mem_get_info()[1]
KEEP, GIVE_UP, FAIL = 0, 1, 2
ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC = 0, 1, 2, 3
ACTIONS = 16
probe = ctypes.CDLL(sys.argv[2])
for function in (
    "hoard_add", "base", "round_trip", "pool_hold", "pool_release", "pool_use_count", "pool_begin",
    "pool_end", "pool_no_split", "pool_lends", "restore_foreign_state",
):  # fmt: skip
    getattr(probe, f"probe_{function}").restype = ctypes.c_char_p
probe.probe_hoard_add.argtypes = [ctypes.c_size_t]
probe.probe_tracker_allocates.argtypes = [ctypes.c_size_t, ctypes.c_int]
probe.probe_round_trip.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
probe.probe_cache_info.argtypes = [ctypes.c_int, ctypes.c_size_t]
probe.probe_cache_info.restype = ctypes.c_size_t
probe.probe_expandable_bytes.restype = ctypes.c_size_t
probe.probe_base.argtypes = [ctypes.c_void_p] * 3
probe.probe_pool_begin.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p]


def text(error):
    return error.decode() if error is not None else ""


def ooms():
    return torch.cuda.memory_stats()["num_ooms"]


# ---- callbacks that free memory


def hoard(size):
    """A block that only the callback frees."""
    assert text(probe.probe_hoard_add(size)) == ""


@check
def a_callback_gives_memory_up():
    hoard(TOTAL // 2)
    before = ooms()
    probe.probe_hoard_mode(GIVE_UP)
    try:
        x = take(TOTAL // 4 * 3)
    finally:
        probe.probe_hoard_mode(KEEP)
    return x.numel() == TOTAL // 4 * 3, ooms() - before


@check
def a_callback_has_nothing_to_give():
    kept = take(TOTAL // 2)
    before, calls = ooms(), probe.probe_hoard_calls()
    kind, said = error_of(lambda: take(TOTAL // 4 * 3))
    assert kept.numel()
    return kind, "Tried to allocate" in said, ooms() - before, probe.probe_hoard_calls() > calls


@check
def a_callback_that_raises():
    """The request ends with its error. Nothing is lost, and the next one works."""
    kept = [take(MIB) for _ in range(4)]
    allocated = statistic("allocated_bytes")
    probe.probe_hoard_mode(FAIL)
    try:
        kind, _ = error_of(lambda: take(TOTAL // 4 * 3 + MIB))
        kind_again, _ = error_of(lambda: take(2 * TOTAL))
    finally:
        probe.probe_hoard_mode(KEEP)
    check_invariants()
    same = statistic("allocated_bytes") == allocated
    x = take(TOTAL // 4)
    assert len(kept) == 4
    # Native tries a request for more than the card has; ferro_alloc does not.
    failed_again = kind_again in ("RuntimeError", "OutOfMemoryError")
    return kind in ("", "RuntimeError"), same, failed_again, x.numel() == TOTAL // 4


@check
def a_callback_that_raises_on_a_full_card():
    kept = take(TOTAL // 2)
    allocated = statistic("allocated_bytes")
    probe.probe_hoard_mode(FAIL)
    try:
        error = error_of(lambda: take(TOTAL // 4 * 3))
    finally:
        probe.probe_hoard_mode(KEEP)
    check_invariants()
    same = statistic("allocated_bytes") == allocated
    x = take(MIB)
    assert kept.numel()
    return error[0], error[1].split("\n")[0], same, x.numel() == MIB


@check
def a_callback_in_a_capture():
    """The result depends on the allocator: the freed memory was in use a moment before."""
    hoard(TOTAL // 2)
    probe.probe_hoard_mode(GIVE_UP)
    graph = torch.cuda.CUDAGraph()

    def capture(graph):
        with torch.cuda.graph(graph):
            torch.full((TOTAL // 4 * 3,), 7, dtype=torch.uint8, device="cuda")

    try:
        kind, _ = error_of(partial(capture, graph))
    finally:
        probe.probe_hoard_mode(KEEP)
    check_invariants()
    del graph
    x = take(TOTAL // 4)
    return kind in ("", "OutOfMemoryError"), x.numel() == TOTAL // 4


# ---- questions


@check
def the_largest_block_that_is_free():
    free = torch.cuda.mem_get_info()[0]
    at_start = probe.probe_cache_info(0, 0) == free
    x = take(TOTAL // 2)
    taken = probe.probe_cache_info(0, 0) == torch.cuda.mem_get_info()[0]
    del x
    cached = probe.probe_cache_info(0, 0) >= TOTAL // 2
    return at_start, taken, cached, probe.probe_cache_info(0, TOTAL) == TOTAL


@check
def segments_that_can_grow():
    """Native has none here. Those of ferro_alloc are listed if a stream owns them."""
    with torch.cuda.stream(torch.cuda.Stream()):
        x = take(30 * MIB)
    count = ctypes.c_int()
    size = probe.probe_expandable_bytes(0, ctypes.byref(count))
    assert x.numel()
    if ALLOCATOR == "ferro":
        return size >= 30 * MIB, count.value >= 1
    return size == 0, count.value == 0


@check
def memory_info():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    probe.probe_memory_info(0, ctypes.byref(free), ctypes.byref(total))
    return (free.value, total.value) == torch.cuda.mem_get_info()


@check
def base_allocations():
    x = take(5 * MIB)
    base, size = ctypes.c_size_t(), ctypes.c_size_t()

    def ask(address):
        return text(probe.probe_base(address, ctypes.byref(base), ctypes.byref(size)))

    said = ask(x.data_ptr())
    around = base.value <= x.data_ptr() and x.data_ptr() + 5 * MIB <= base.value + size.value
    return said, around, "invalid device pointer" in ask(0x7000)


@check
def round_trips():
    intact = ctypes.c_int()
    errors = [
        text(probe.probe_round_trip(size, 17, ctypes.byref(intact)))
        for size in (1, 512, 300 * KIB, 3 * MIB, 40 * MIB)
    ]
    return errors, intact.value


# ---- pools


def use_count(pool):
    count = ctypes.c_int(-1)
    error = text(probe.probe_pool_use_count(0, pool, ctypes.byref(count)))
    return count.value if not error else "unknown"


@check
def holds_of_a_pool():
    counts = [use_count(7001)]
    for function in ("hold", "hold", "release", "release"):
        error = text(getattr(probe, f"probe_pool_{function}")(0, 7001))
        counts.append((error, use_count(7001)))
    return counts[:4]


@check
def releasing_an_unheld_pool():
    return bool(text(probe.probe_pool_release(0, 7002)))


@check
def devices_that_are_not_there():
    errors = [
        text(call)
        for call in (
            probe.probe_pool_hold(17, 7003),
            probe.probe_pool_release(17, 7003),
            probe.probe_pool_begin(17, 7003, 0),
            probe.probe_pool_end(17, 7003),
        )
    ]
    return ["Invalid device argument" in error for error in errors]


@check
def allocations_to_a_pool():
    stream = torch.cuda.Stream()
    said = [text(probe.probe_pool_begin(0, 7004, stream.cuda_stream))]
    said.append("already recording" in text(probe.probe_pool_begin(0, 7004, 0)))
    with torch.cuda.stream(stream):
        x = take(MIB)
    y = take(MIB)
    said.append(text(probe.probe_pool_end(0, 7004)))
    with torch.cuda.stream(stream):
        z = take(MIB)

    def pool_of(tensor):
        for segment in torch.cuda.memory_snapshot():
            start = segment["address"]
            if start <= tensor.data_ptr() < start + segment["total_size"]:
                return tuple(segment["segment_pool_id"])
        return None

    pools = [pool_of(tensor) for tensor in (x, y, z)]
    del x
    said.append(text(probe.probe_pool_release(0, 7004)))
    return said, pools


@check
def ending_what_never_began():
    return bool(text(probe.probe_pool_end(0, 7005)))


@check
def pools_that_do_not_split_and_lend():
    said = [text(probe.probe_pool_hold(0, 7006)), text(probe.probe_pool_no_split(0, 7006))]
    said.append(text(probe.probe_pool_lends(0, 7006)))
    stream = torch.cuda.current_stream().cuda_stream
    said.append(text(probe.probe_pool_begin(0, 7006, stream)))
    x = take(TOTAL // 4 * 3)
    said.append(text(probe.probe_pool_end(0, 7006)))
    del x
    # Without the pool's memory it does not fit.
    y = take(TOTAL // 4 * 3)
    lent = y.numel() == TOTAL // 4 * 3
    del y
    said += [text(probe.probe_pool_release(0, 7006)) for _ in range(2)]
    return said, lent


@check
def checkpoints_of_others():
    return bool(text(probe.probe_restore_foreign_state(0)))


# ---- what others hear


@check
def compile_contexts():
    torch.cuda.memory._record_memory_history("all", stacks="python", compile_context=True)
    try:
        first = take(KIB)
        probe.probe_push_compile_context(b"0/0")
        second = take(2 * KIB)
        probe.probe_push_compile_context(b"1/0")
        del first
        probe.probe_pop_compile_context()
        del second
        probe.probe_pop_compile_context()
        probe.probe_pop_compile_context()
        third = take(3 * KIB)
        (trace,) = torch.cuda.memory._snapshot()["device_traces"]
    finally:
        torch.cuda.memory._record_memory_history(None)
    assert third.numel()
    seen = ("alloc", "free_requested", "free_completed")
    return [
        (entry["action"], entry["size"], entry["compile_context"])
        for entry in trace
        if entry["action"] in seen
    ]


@check
def gpu_traces():
    """Sanitisers of streams and memory use these traces."""
    from torch.cuda import _gpu_trace

    events = []
    _gpu_trace.register_callback_for_memory_allocation(lambda ptr: events.append(("new", ptr)))
    _gpu_trace.register_callback_for_memory_deallocation(lambda ptr: events.append(("old", ptr)))
    torch._C._activate_gpu_trace()
    x = take(MIB)
    address = x.data_ptr()
    del x
    y = torch.cuda.caching_allocator_alloc(KIB)
    torch.cuda.caching_allocator_delete(y)
    return events == [("new", address), ("old", address), ("new", y), ("old", y)]


@check
def an_observer_that_raises():
    """Attached by C++. The request fails nevertheless, with one of the two errors."""
    probe.probe_watch_failures()
    kinds = [error_of(lambda: take(2 * TOTAL))[0] for _ in range(2)]
    x = take(MIB)
    check_invariants()
    return kinds, x.numel() == MIB


def told():
    counts, sizes = (ctypes.c_int64 * ACTIONS)(), (ctypes.c_int64 * ACTIONS)()
    probe.probe_told(counts, sizes)
    return list(counts), list(sizes)


@check
def trackers():
    probe.probe_track()
    (counts, sizes), kept = told(), take(300)
    x = take(3 * MIB)
    del x
    (counts_after, sizes_after) = told()
    assert kept.numel()
    actions = (ALLOC, FREE_REQUESTED, FREE_COMPLETED)
    grown = [(counts_after[a] - counts[a], sizes_after[a] - sizes[a]) for a in actions]
    return grown, counts_after[SEGMENT_ALLOC] + counts_after[5] > 0


def allocate_in_tracker(own, nested, always):
    """The entries that the tracker gets for a block and its release while it allocates too."""
    torch.cuda.empty_cache()
    (counts, sizes) = told()
    probe.probe_tracker_allocates(nested, always)
    try:
        x = take(own)
        assert x.numel() == own
        del x
        # Before the call that caused them has returned.
        (counts_after, sizes_after) = told()
    finally:
        probe.probe_tracker_allocates(0, 0)
    check_invariants()
    actions = (ALLOC, FREE_REQUESTED, FREE_COMPLETED)
    return [(counts_after[a] - counts[a], sizes_after[a] - sizes[a]) for a in actions]


@check
def a_tracker_that_allocates():
    """It allocates on the stream of each event: small blocks, and blocks that need new memory each
    time."""
    # With a second thread, locks of heaps have no bias and block.
    thread = Thread(target=lambda: take(KIB))
    thread.start()
    thread.join()
    sizes = ((300, 700), (3 * MIB, 5 * MIB), (40 * MIB, 60 * MIB))
    if ALLOCATOR == "ferro":  # native is in the middle of a change, and fails an assertion
        for own, nested in sizes:
            grown = allocate_in_tracker(own, nested, 1)
            assert grown[0][0] >= 3, grown
            assert grown[0] == grown[1] == grown[2], grown
    return [allocate_in_tracker(own, nested, 0) for own, nested in sizes]


@check
def a_tracker_that_raises():
    """Nothing is lost, whether the allocation fails for it or not."""
    kept = take(MIB)
    before = statistic("allocation") if ALLOCATOR == "ferro" else 0
    probe.probe_tracker_fails(1)
    try:
        kind, said = error_of(lambda: take(2 * MIB))
    finally:
        probe.probe_tracker_fails(0)
    check_invariants()
    x = take(2 * MIB)
    assert kept.numel()
    if ALLOCATOR == "ferro":  # native counts the block forever
        assert statistic("allocation") == before + 1
    return kind, "a tracker that fails" in said, x.numel() == 2 * MIB


finish()
