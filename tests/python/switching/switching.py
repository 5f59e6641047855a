"""Installing late, uninstalling and installing again, around tensors, graphs, pools and threads.

With the argument `switch` the allocators change at `on()` and `off()`; with `native` they do not.
The checks return the same values.
"""

import sys
import threading

from tests.python.feature_checks import (
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

import ferro_alloc

SWITCH = sys.argv[1] == "switch"
TOTAL = torch.cuda.mem_get_info()[1]


def on():
    if SWITCH:
        ferro_alloc.install()
        assert ferro_alloc.is_installed()
        assert torch.cuda.get_allocator_backend() == "ferro_alloc"


def off():
    if SWITCH:
        ferro_alloc.uninstall()
        assert not ferro_alloc.is_installed()
        assert torch.cuda.get_allocator_backend() == "native"


def check_switching(function):
    """Like `check`, but begins and ends under native, and no allocation remains."""

    def whole():
        before = torch.cuda.memory_allocated()
        try:
            value = function()
        finally:
            off()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        assert torch.cuda.memory_allocated() == before, (torch.cuda.memory_allocated(), before)
        if SWITCH and ferro_alloc._load.load().is_installed():
            ferro_alloc._C.check_invariants(0)
        return value

    whole.__name__ = function.__name__
    return check(whole)


def good(tensor, tag):
    return bool((tensor.cpu() == words(tag, tensor.numel() * 4)).all())


def captured(source, **options):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        result = source.clone()
    return graph, result


def replays(graph, source, result, tag):
    source.copy_(words(tag, source.numel() * 4))
    graph.replay()
    return good(result, tag)


@check_switching
def tensors_of_both_live_on():
    old = filled(3 * MIB, 1)
    on()
    new = filled(3 * MIB, 2)
    mixed = torch.cat([old, new]).cpu()
    seen = [good(old, 1), good(new, 2), len(mixed)]
    del old
    off()
    last = filled(3 * MIB, 3)
    seen += [good(new, 2), good(last, 3)]
    del new
    on()
    again = filled(3 * MIB, 4)
    return [*seen, good(last, 3), good(again, 4)]


@check_switching
def statistics_go_on():
    names = [("allocation", column) for column in ("current", "allocated", "freed")]
    names += [("allocated_bytes", "current"), ("requested_bytes", "allocated"), ("active", "freed")]
    start = {name: statistic(*name) for name in names}
    seen = []

    def look():
        seen.append([statistic(*name) - start[name] for name in names])

    old = [take(5000), take(70000)]
    look()
    on()
    look()
    new = [take(3000), take(6 * MIB)]
    look()
    del old[0]
    look()
    off()
    look()
    del new[0], old
    last = take(1000)
    look()
    del new, last
    look()
    return seen


@check_switching
def peaks_stay_between_earlier_bytes_and_the_sum():
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    old = take(40 * MIB)
    take(60 * MIB)  # the peak: 100 MiB
    on()
    first = torch.cuda.max_memory_allocated() - base
    new = take(30 * MIB)
    second = torch.cuda.max_memory_allocated() - base
    big = take(80 * MIB)  # 150 MiB
    third = torch.cuda.max_memory_allocated() - base
    del old, big
    off()
    last = take(20 * MIB)
    fourth = torch.cuda.max_memory_allocated() - base
    torch.cuda.reset_peak_memory_stats()
    fifth = torch.cuda.max_memory_allocated() - base
    del new
    on()
    kept = take(45 * MIB)
    sixth = torch.cuda.max_memory_allocated() - base
    del last, kept
    torch.cuda.reset_peak_memory_stats()
    seventh = torch.cuda.max_memory_allocated() - base
    return [value // MIB for value in (first, second, third, fourth, fifth, sixth, seventh)]


@check_switching
def peaks_while_a_pool_of_the_other_allocator_grows():
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    seen = []

    def look():
        seen.append((torch.cuda.max_memory_allocated() - base) // MIB)

    def in_a_pool(pool, size):
        with torch.cuda.use_mem_pool(pool):
            return take(size)

    first = torch.cuda.MemPool()
    old = in_a_pool(first, 10 * MIB)
    on()
    second = torch.cuda.MemPool()
    new = in_a_pool(second, 20 * MIB)
    big = take(50 * MIB)  # 80 MiB
    del big
    grown = in_a_pool(first, 40 * MIB)  # 70 MiB, and never 120
    look()
    most = in_a_pool(first, 60 * MIB)  # 130 MiB
    del most
    look()
    off()
    kept = take(20 * MIB)
    del kept
    look()
    last = in_a_pool(second, 66 * MIB)  # 136 MiB
    del last
    look()
    del old, new, grown, first, second
    look()
    torch.cuda.reset_peak_memory_stats()
    look()
    return seen


@check_switching
def the_earlier_cache_is_released():
    old = take(30 * MIB)
    del old
    on()
    seen = torch.cuda.memory_reserved() if SWITCH else 0
    new = take(30 * MIB)
    del new
    off()
    return seen, torch.cuda.memory_reserved() if SWITCH else 0


@check_switching
def graphs_replay_on_both_sides():
    source = filled(MIB, 1)
    before, result_before = captured(source)
    on()
    seen = [replays(before, source, result_before, 10)]
    inside, result_inside = captured(source)
    noise = [filled(MIB, 100 + i) for i in range(8)]
    seen += [replays(before, source, result_before, 20), replays(inside, source, result_inside, 30)]
    off()
    seen += [replays(before, source, result_before, 40), replays(inside, source, result_inside, 50)]
    seen += [good(tensor, 100 + i) for i, tensor in enumerate(noise)]
    after, result_after = captured(source)
    del inside, result_inside
    on()
    torch.cuda.empty_cache()
    seen += [replays(before, source, result_before, 60), replays(after, source, result_after, 70)]
    del before, result_before
    return [*seen, replays(after, source, result_after, 80)]


@check_switching
def a_graph_captures_into_an_earlier_pool():
    source = filled(MIB, 1)
    first, result = captured(source)
    unused = torch.cuda.graph_pool_handle()
    on()
    second, other = captured(source, pool=first.pool())
    third, last = captured(source, pool=unused)
    seen = [
        replays(first, source, result, 3),
        replays(second, source, other, 4),
        replays(third, source, last, 5),
    ]
    owners = {segment["segment_pool_id"] for segment in torch.cuda.memory_snapshot()}
    seen += [tuple(first.pool()) in owners, tuple(unused) in owners]
    first.reset()
    return [*seen, replays(second, source, other, 6)]


@check_switching
def pools_of_both():
    pool, seen = torch.cuda.MemPool(), []

    def look(*pools):
        seen.append(
            [(p.use_count(), sum(s["allocated_size"] for s in p.snapshot())) for p in pools]
        )

    with torch.cuda.use_mem_pool(pool):
        kept = [filled(3 * MIB, 1)]
    look(pool)
    on()
    look(pool)
    with torch.cuda.use_mem_pool(pool):
        kept.append(filled(3 * MIB, 2))
        look(pool)
    inner = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(inner):
        kept.append(filled(3 * MIB, 3))
        with torch.cuda.use_mem_pool(pool):
            kept.append(filled(3 * MIB, 4))
            look(pool, inner)
        kept.append(filled(3 * MIB, 5))
    look(pool, inner)
    off()
    with torch.cuda.use_mem_pool(inner):
        kept.append(filled(3 * MIB, 6))
        look(pool, inner)
    outside = filled(3 * MIB, 7)
    look(pool, inner)
    seen.append([good(tensor, i + 1) for i, tensor in enumerate([*kept, outside])])
    del pool
    kept.clear()
    look(inner)
    return seen


@check_switching
def switching_within_a_pools_scope():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        old = filled(3 * MIB, 1)
        on()
        new = filled(3 * MIB, 2)
    use_count = pool.use_count()
    other = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(other):
        third = filled(3 * MIB, 3)
        off()
        fourth = filled(3 * MIB, 4)
    in_pool = sum(segment["allocated_size"] for segment in other.snapshot())
    seen = [good(tensor, i + 1) for i, tensor in enumerate((old, new, third, fourth))]
    return seen, use_count, other.use_count(), in_pool


@check_switching
def streams_are_waited_for():
    side, seen = torch.cuda.Stream(), []

    def round_trip(boxed, tag):
        """The side stream reads late; a block that reuses the memory too early overwrites it."""
        tensor = boxed.pop()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            copies = [tensor.clone() for _ in range(4)]
        tensor.record_stream(side)
        del tensor
        noise = [filled(2 * MIB, 900 + i) for i in range(6)]
        side.synchronize()
        seen.extend(good(copy, tag) for copy in copies)
        del noise

    old, other = [filled(2 * MIB, 1)], [filled(2 * MIB, 2)]
    on()
    round_trip(old, 1)
    new = [filled(2 * MIB, 3)]
    off()
    round_trip(new, 3)
    round_trip(other, 2)
    round_trip([filled(2 * MIB, 4)], 4)
    return seen


@check_switching
def raw_pointers_return_to_their_allocator():
    def raw(size):
        return torch.cuda.caching_allocator_alloc(size)

    before = statistic("allocation")
    pointers = [raw(MIB)]
    on()
    pointers.append(raw(MIB))
    torch.cuda.caching_allocator_delete(pointers.pop(0))
    off()
    pointers.append(raw(MIB))
    torch.cuda.caching_allocator_delete(pointers.pop(0))
    on()
    torch.cuda.caching_allocator_delete(pointers.pop(0))
    kind, text = error_of(lambda: torch.cuda.caching_allocator_delete(12345))
    return statistic("allocation") - before, kind, text.splitlines()[0]


@check_switching
def caching_is_switched_off_and_on():
    seen = []

    def look():
        free = torch.cuda.mem_get_info()[0] // MIB
        seen.append((statistic("requested_bytes", "allocated") - base, free - start))

    start, base = 0, statistic("requested_bytes", "allocated")
    on()
    torch.cuda.empty_cache()
    start = torch.cuda.mem_get_info()[0] // MIB
    try:
        torch.cuda.caching_allocator_enable(False)
        direct = filled(8 * MIB, 1)
        pointer = torch.cuda.caching_allocator_alloc(2 * MIB)
        look()
        torch.cuda.caching_allocator_enable(True)
        cached = filled(8 * MIB, 2)
        torch.cuda.caching_allocator_enable(False)
        seen.append((good(direct, 1), good(cached, 2)))
        del cached
        torch.cuda.caching_allocator_delete(pointer)
        direct.record_stream(torch.cuda.Stream())
        torch.cuda.caching_allocator_enable(True)
        del direct
        torch.cuda.empty_cache()
        look()
        torch.cuda.caching_allocator_enable(False)
        crossing = filled(4 * MIB, 3)
        empty = torch.empty(0, device="cuda")
        off()
        seen.append((good(crossing, 3), len(empty)))
        del crossing
        look()
    finally:
        torch.cuda.caching_allocator_enable(True)
    return seen


@check_switching
def oversized_requests_raise_torchs_error_without_caching():
    on()
    torch.cuda.caching_allocator_enable(False)
    try:
        kind, text = error_of(lambda: take(2 * TOTAL))
    finally:
        torch.cuda.caching_allocator_enable(True)
    after = filled(MIB, 1)
    return kind, text.splitlines()[0], good(after, 1)


@check_switching
def both_have_one_memory_limit():
    torch.cuda.set_per_process_memory_fraction(0.5)
    try:
        old = take(300 * MIB)
        on()
        fraction = round(torch.cuda.get_per_process_memory_fraction(), 6)
        new = take(150 * MIB)
        refused = error_of(lambda: take(100 * MIB))[0]
        del old
        room = take(300 * MIB)
        del new, room
        torch.cuda.set_per_process_memory_fraction(0.25)
        off()
        torch.cuda.empty_cache()
        tight = error_of(lambda: take(300 * MIB))[0]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    on()
    free = take(800 * MIB)
    del free
    return fraction, refused, tight, torch.cuda.get_per_process_memory_fraction()


@check_switching
def each_takes_the_unused_memory_of_the_other():
    old = [take(250 * MIB) for _ in range(3)]
    on()
    del old
    new = take(700 * MIB)
    del new
    off()
    last = take(700 * MIB)
    del last
    on()
    again = take(700 * MIB)
    off()
    del again
    final = take(700 * MIB)
    return final.numel()


@check_switching
def a_failure_reports_the_memory_of_the_other():
    old = take(600 * MIB)
    on()
    kind, text = error_of(lambda: take(600 * MIB))
    if SWITCH:
        beside = "the allocator 'native' holds 600.00 MiB, of which 600.00 MiB are live."
        assert f"Beside it, {beside}" in text, text
        assert "verdict = CAPACITY" in text, text
    del old
    return kind, text.startswith("CUDA out of memory. Tried to allocate 600.00 MiB. GPU 0 has")


@check_switching
def snapshots_show_both():
    old = take(3 * MIB)
    on()
    new = take(5 * MIB)
    segments = torch.cuda.memory_snapshot()
    where = [segment["address"] for segment in segments]
    assert where == sorted(where)
    for segment in segments:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    live = {
        block["address"]
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    return [tensor.data_ptr() in live for tensor in (old, new)]


@check_switching
def histories_go_on():
    on()
    torch.cuda.memory._record_memory_history("all")
    try:
        torch.cuda.memory._record_memory_history(None)
        torch.cuda.memory._record_memory_history("all")
        inside = take(3 * MIB)
        off()
        outside = take(5 * MIB)
        del inside
        on()
        last = take(7 * MIB)
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        del outside, last
    finally:
        torch.cuda.memory._record_memory_history(None)
    times = [entry["time_us"] for entry in trace]
    assert times == sorted(times)
    wanted = {3 * MIB, 5 * MIB, 7 * MIB}
    return [
        (entry["action"], entry["size"] // MIB, bool(entry["frames"]))
        for entry in trace
        if entry["action"] in ("alloc", "free_requested") and entry["size"] in wanted
    ]


@check_switching
def nothing_switches_during_a_capture():
    source = filled(MIB, 1)

    def refused(switch):
        if not SWITCH:
            return True
        kind, text = error_of(switch)
        return kind == "FerroError" and "during the capture of a CUDA graph" in text

    seen, results = [], []
    for first, second in ((ferro_alloc.install, on), (ferro_alloc.uninstall, off)):
        graph = torch.cuda.CUDAGraph()
        other_thread = []
        with torch.cuda.graph(graph):
            results.append(source.clone())
            seen.append(refused(first))
            if SWITCH:
                # Its own current stream does not capture.
                torch.cuda._lazy_init()
                thread = threading.Thread(target=lambda f=first: other_thread.append(refused(f)))  # noqa: B023
                thread.start()
                thread.join()
                assert other_thread == [True]
            results.append(source.clone())
        graph.replay()
        seen += [good(result, 1) for result in results]
        results.clear()
        second()
    return seen


@check_switching
def a_failed_capture_does_not_prevent_switching():
    source, graph = filled(MIB, 1), torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()

    def fail():
        with torch.cuda.graph(graph, stream=side):
            source.clone()
            torch.cuda.synchronize()

    kind = error_of(fail)[0]
    torch.cuda.set_stream(torch.cuda.default_stream())
    on()
    new = filled(MIB, 2)
    second, result = captured(source)
    return kind != "", good(new, 2), replays(second, source, result, 3)


@check_switching
def threads_go_on():
    stop, wrong = threading.Event(), []

    def work(number):
        stream = torch.cuda.Stream()
        kept = []
        with torch.cuda.stream(stream):
            turn = 0
            while not stop.is_set():
                turn += 1
                tag = number * 10_000 + turn
                kept.append((filled((turn % 7 + 1) * 65536, tag), tag))
                if len(kept) > 12:
                    tensor, tag = kept.pop(turn % 12)
                    stream.synchronize()
                    if not good(tensor, tag):
                        wrong.append(tag)
            stream.synchronize()
            wrong.extend(tag for tensor, tag in kept if not good(tensor, tag))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(25):
        on()
        torch.cuda.memory_stats()
        off()
    stop.set()
    for thread in threads:
        thread.join()
    return wrong


@check_switching
def repeated_switching_keeps_no_memory():
    def used():
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    on()
    off()
    before = used()
    for _ in range(20):
        on()
        take(5 * MIB)
        off()
        take(5 * MIB)
    return before - used()


finish()
