"""Checks ferro_alloc.memory_saver case by case. Prints the results as JSON.

Argument: the number of devices.
"""

import gc
import json
import logging
import os
import sys
import threading
from contextlib import contextmanager

import torch

import ferro_alloc
from ferro_alloc import _C
from ferro_alloc.memory_saver import TorchMemorySaver, configure_subprocess, torch_memory_saver

MIB = 1 << 20
DEVICES = int(sys.argv[1])
seen = {}
warnings = []
saver = torch_memory_saver


class Listener(logging.Handler):
    def emit(self, record):
        warnings.append(record.getMessage())


logging.getLogger("ferro_alloc").addHandler(Listener(logging.WARNING))
ferro_alloc.install()


def check(function):
    global saver
    saver = TorchMemorySaver()
    # A thread's first region requests workspaces.
    with saver.region("workspaces"):
        pass
    warnings.clear()
    seen[function.__name__] = function()
    ferro_alloc.wake()
    torch.cuda.synchronize()
    saver = None
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    for index in range(DEVICES):
        _C.check_invariants(index)
    assert torch.cuda.memory_reserved() == 0, function.__name__
    return function


def on_device(index=0):
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(index)
    return (total - free) // MIB


def filled(mib, value, device="cuda"):
    return torch.full((mib * MIB // 4,), value, dtype=torch.int32, device=device)


def holds(tensor, value):
    return bool((tensor == value).all())


@contextmanager
def refused(kind, errors):
    try:
        yield
    except kind as error:
        errors.append(f"{type(error).__name__}: {error}")
    else:
        errors.append("nothing")


@check
def contents_stay_or_are_dropped():
    with saver.region("weights", enable_cpu_backup=True):
        weights = [filled(20, n) for n in range(3)]
        small = [torch.full((100,), float(n), device="cuda") for n in range(30)]
    with saver.region("cache"):
        cache = filled(30, 7)
        small_cache = torch.full((100,), 8.0, device="cuda")
    outside = filled(10, 5)
    small_outside = torch.full((100,), 6.0, device="cuda")
    places = [t.data_ptr() for t in (*weights, *small, cache, small_cache)]
    full = on_device()
    calls, original = [], _C.sleep
    _C.sleep = lambda *given: calls.append(given) or original(*given)
    saver.pause()
    _C.sleep = original
    paused = on_device()
    kept = ferro_alloc.asleep().content_bytes
    good = [holds(outside, 5), holds(small_outside, 6.0)]
    saver.resume()
    good.append(all(holds(w, n) for n, w in enumerate(weights)))
    good.append(all(holds(s, float(n)) for n, s in enumerate(small)))
    good.append(places == [t.data_ptr() for t in (*weights, *small, cache, small_cache)])
    cache.fill_(1)
    good.append(holds(cache, 1) and holds(outside, 5))
    assert 60 * MIB <= kept < 64 * MIB
    # The sizes are weights, cache, and a page for the small tensors of each.
    return [full - paused, on_device() == full, good, warnings, len(calls)]


@check
def tags_pause_alone():
    with saver.region("a", enable_cpu_backup=True):
        a = filled(20, 1)
    with saver.region("a"):
        dropped = filled(6, 4)
    with saver.region("b", enable_cpu_backup=True):
        b = filled(40, 2)
    full = on_device()
    saver.pause("a")
    first = full - on_device()
    saver.pause("b")
    both = full - on_device()
    saver.resume("b")
    back = full - on_device()
    good = holds(b, 2)
    saver.resume("a")
    dropped.fill_(1)
    return [first, both, back, full - on_device(), good and holds(a, 1) and holds(b, 2)]


@check
def repeated_pauses():
    with saver.region("a", enable_cpu_backup=True):
        a = filled(20, 1)
    full = on_device()
    numbers = set()
    for turn in range(30):
        for _ in range(turn % 3 + 1):
            saver.pause("a")
            numbers.add(full - on_device())
        saver.pause("an unknown tag")
        saver.pause()
        for _ in range(turn % 2 + 1):
            saver.resume("a")
        saver.resume("an unknown tag")
        saver.resume()
        numbers.add(full - on_device())
        assert holds(a, 1), turn
    return sorted(numbers)


@check
def contents_kept_once_are_not_dropped_by_a_second_pause():
    with saver.region("a", enable_cpu_backup=True):
        a = filled(20, 3)
    saver.pause("a")
    with saver.region("a"):
        dropped = filled(20, 4)
    saver.pause("a")
    saver.pause()
    saver.resume("a")
    dropped.fill_(5)
    return holds(a, 3) and holds(dropped, 5)


@check
def paused_tensors_are_freed():
    with saver.region("a", enable_cpu_backup=True):
        first, second = filled(20, 1), filled(40, 2)
        small = [torch.full((100,), float(n), device="cuda") for n in range(30)]
    base = on_device()
    saver.pause()
    down = base - on_device()
    del first, small[::2]
    torch.cuda.empty_cache()
    saver.resume()
    back = base - on_device()
    good = holds(second, 2) and all(holds(s, 2.0 * n + 1) for n, s in enumerate(small))
    saver.pause()
    del second
    saver.resume()
    del small
    return [down, back, good, base - on_device()]


@check
def regions_may_be_entered_while_they_are_paused():
    with saver.region("a", enable_cpu_backup=True):
        old = filled(20, 1)
        gone = filled(20, 9)
    del gone
    saver.pause("a")
    base = on_device()
    with saver.region("a", enable_cpu_backup=True):
        new = filled(20, 2)
        small = torch.full((100,), 3.0, device="cuda")
        awake = on_device() - base
        saver.pause("a")
        asleep = on_device() - base
        third = filled(8, 4)
        rest = on_device() - base
        saver.resume()
        good = holds(new, 2) and holds(small, 3.0) and holds(third, 4) and holds(old, 1)
    return [awake, asleep, rest, good]


@check
def freed_memory_of_a_region_returns_at_its_pause():
    with saver.region("a", enable_cpu_backup=True):
        kept, freed = filled(20, 1), [filled(20, n) for n in range(4)]
    del freed
    held = torch.cuda.memory_reserved() // MIB
    with saver.region("a", enable_cpu_backup=True):
        again = filled(20, 5)
    reused = torch.cuda.memory_reserved() // MIB
    saver.pause("a")
    paused = torch.cuda.memory_reserved() // MIB
    saver.resume("a")
    woken = torch.cuda.memory_reserved() // MIB
    return [held, reused, paused, woken, holds(kept, 1) and holds(again, 5)]


@check
def regions_nest():
    with saver.region("a", enable_cpu_backup=True):
        first = filled(10, 1)
        with saver.region("b"):
            inner = filled(20, 2)
            with saver.region("a", enable_cpu_backup=True):
                second = filled(10, 3)
                with saver.region("a", enable_cpu_backup=True):
                    third = filled(10, 4)
            inner_again = filled(20, 5)
        fourth = filled(10, 6)
    outside = filled(10, 7)
    full = on_device()
    saver.pause("b")
    one = full - on_device()
    good = [holds(t, n) for t, n in ((first, 1), (second, 3), (third, 4), (fourth, 6))]
    saver.pause("a")
    both = full - on_device()
    good.append(holds(outside, 7))
    saver.resume("a")
    good += [holds(t, n) for t, n in ((first, 1), (second, 3), (third, 4), (fourth, 6))]
    saver.resume()
    inner.fill_(0)
    inner_again.fill_(0)
    return [one, both, all(good), warnings]


@check
def disable_inside_and_outside_of_regions():
    with saver.region("a"):
        before = filled(10, 1)
        with saver.disable():
            apart = filled(20, 2)
            with saver.region("b"):
                inner = filled(10, 3)
            small = torch.full((100,), 4.0, device="cuda")
        after = filled(10, 5)
    with saver.disable():
        outside = filled(10, 6)
    full = on_device()
    saver.pause()
    down = full - on_device()
    good = holds(apart, 2) and holds(small, 4.0) and holds(outside, 6)
    saver.resume()
    for tensor in (before, inner, after):
        tensor.fill_(0)
    full = on_device()
    del apart, outside
    return [down, good, full - on_device()]


@check
def regions_of_several_threads():
    tensors, errors = {}, []
    barrier = threading.Barrier(4)

    def work(n):
        try:
            for turn in range(5):
                barrier.wait()
                with saver.region("a" if n % 2 else f"b{n}", enable_cpu_backup=True):
                    tensors[n, turn] = filled(4, n * 10 + turn)
                if n == 0:
                    tensors[n, turn, "outside"] = filled(4, 99)
        except BaseException as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    full = on_device()
    saver.pause("a")
    one = full - on_device()
    saver.pause()
    down = full - on_device()
    saver.resume()
    good = all(holds(t, 99 if len(k) == 3 else k[0] * 10 + k[1]) for k, t in tensors.items())
    return [errors, one, down, good]


@check
def pauses_beside_regions_of_other_threads():
    stop, errors = threading.Event(), []

    def work(n):
        try:
            turn = 0
            while not stop.is_set():
                with saver.region(f"t{n}", enable_cpu_backup=True):
                    mine = filled(2, turn)
                del mine
                turn += 1
        except BaseException as error:
            errors.append(repr(error))

    with saver.region("a", enable_cpu_backup=True):
        a = filled(20, 1)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        saver.pause("a")
        saver.resume("a")
    stop.set()
    for thread in threads:
        thread.join()
    return [errors, holds(a, 1)]


@check
def captures_in_regions():
    static = filled(4, 1)
    graph = torch.cuda.CUDAGraph()
    with saver.region("a", enable_cpu_backup=True):
        weights = filled(10, 2)
        with torch.cuda.graph(graph):
            scratch = static.clone()
            result = scratch.clone()
            del scratch
        later = filled(10, 3)
    graph.replay()
    full = on_device()
    saver.pause()
    down = full - on_device()
    errors = []
    with refused(ferro_alloc.FerroError, errors):
        graph.replay()
    saver.resume()
    good = [holds(result, 1), holds(weights, 2), holds(later, 3)]
    static.fill_(4)
    graph.replay()
    good += [holds(result, 4), holds(weights, 2), holds(later, 3)]
    return [down, "asleep" in errors[0], good]


@check
def regions_in_captures():
    static = filled(4, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with saver.region("a", enable_cpu_backup=True):
            result = static.clone()
            with saver.disable():
                free = static.clone()
        errors = []
        with refused(RuntimeError, errors):
            saver.pause()
        with refused(RuntimeError, errors):
            saver.resume()
    graph.replay()
    saver.pause()
    saver.resume()
    good = [holds(result, 1), holds(free, 1)]
    static.fill_(2)
    graph.replay()
    return [["capture" in error for error in errors], [*good, holds(result, 2), holds(free, 2)]]


@check
def graphs_of_the_saver():
    static = filled(4, 1)
    pool = torch.cuda.graph_pool_handle()
    graphs, results = [], []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with saver.cuda_graph(graph, pool=pool, tag="graph", enable_cpu_backup=True):
            results.append(static.clone())
        graphs.append(graph)
    for graph in graphs:
        graph.replay()
    full = on_device()
    saver.pause("graph")
    down = full - on_device()
    errors = []
    for graph in graphs:
        with refused(ferro_alloc.FerroError, errors):
            graph.replay()
    saver.resume("graph")
    good = [holds(result, 1) for result in results]
    static.fill_(5)
    for graph in graphs:
        graph.replay()
    good += [holds(result, 5) for result in results]
    return [down, ["asleep" in e for e in errors], good]


@check
def graphs_of_two_kinds_in_one_pool():
    pool = torch.cuda.graph_pool_handle()
    static = torch.full((1000,), 1.0, device="cuda")
    graphs, results = [], []
    for kept in (True, False):
        graph = torch.cuda.CUDAGraph()
        with saver.cuda_graph(graph, pool=pool, tag="g", enable_cpu_backup=kept):
            results.append(static.clone())
        graphs.append(graph)
        graph.replay()
    saver.pause("g")
    slept = ferro_alloc.asleep().device_bytes > 0
    saver.resume("g")
    kept = holds(results[0], 1.0)
    graphs[1].replay()  # its result was dropped, also beside what was kept
    return [slept, [kept, holds(results[1], 1.0)], warnings]


@check
def other_tags_inside_a_region_stay_awake():
    with saver.region("a"):
        mine = filled(10, 1)
        with ferro_alloc.tag("other"):
            other = filled(10, 2)
    saver.pause()
    good = holds(other, 2)
    saver.resume()
    mine.fill_(1)
    return [good, all("other memory in use" in w for w in warnings)]


@check
def workspaces_of_libraries_stay_awake():
    def multiply(a):
        return torch.nn.functional.linear(a, a, a[0]) + a @ a

    with saver.region("a"):
        inside = filled(10, 1)
        product = multiply(torch.ones(64, 64, device="cuda"))
    full = on_device()
    saver.pause()
    down = full - on_device()
    multiply(torch.ones(64, 64, device="cuda"))
    torch.cuda.synchronize()
    on_stream = []
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), saver.region("b"):
        on_stream.append(multiply(torch.ones(64, 64, device="cuda")))
        on_stream.append(filled(10, 1))
    full = on_device()
    saver.pause()
    down_again = full - on_device()
    with torch.cuda.stream(stream):
        multiply(torch.ones(64, 64, device="cuda"))
    torch.cuda.synchronize()
    saver.resume()
    del product, inside, on_stream
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    left = torch.cuda.memory_reserved()
    return [down, down_again, left, warnings]


@check
def scratch_of_graphs_of_the_saver():
    static = filled(4, 1)
    graph = torch.cuda.CUDAGraph()
    with saver.cuda_graph(graph, tag="graph", enable_cpu_backup=True):
        scratch = [static.clone() for _ in range(8)]
        result = scratch[7].clone()
        del scratch
    graph.replay()
    full = on_device()
    saver.pause("graph")
    down = full - on_device()
    saver.resume()
    good = [holds(result, 1)]
    static.fill_(6)
    graph.replay()
    return [down, [*good, holds(result, 6)]]


@check
def strange_tags():
    strange = ["", "default", "x" * 300, "two\nlines", "Ünï", "region number 3", "a'", "'", "a"]
    tensors = {}
    for n, tag in enumerate(strange):
        for kept in (True, False):
            with saver.region(tag, enable_cpu_backup=kept):
                tensors[n, kept] = filled(2, n)
    for tag in filter(None, strange):
        before = on_device()
        saver.pause(tag)
        assert before - on_device() == 4, tag
    saver.pause("")
    saver.resume()
    names = [name for name in ferro_alloc.status().devices[0].tags if name.startswith("region ")]
    errors = []
    with refused(ferro_alloc.FerroError, errors), saver.region(None):
        pass
    for call in (saver.pause, saver.resume):
        with refused(ferro_alloc.FerroError, errors):
            call(["a"])
    return [all(holds(t, k[0]) for k, t in tensors.items() if k[1]), len(names), errors]


@check
def too_little_memory_to_resume():
    with saver.region("a", enable_cpu_backup=True):
        a = filled(60, 1)
    saver.pause()
    # Fills the card. Memory of the host is behind it only where it is written.
    other = [filled(70, 2), torch.empty(900 * MIB, dtype=torch.uint8, device="cuda")]
    errors = []
    with refused(torch.OutOfMemoryError, errors):
        saver.resume()
    good = holds(other[0], 2)
    del other
    saver.resume()
    return [good and holds(a, 1), "missing" in errors[0]]


@check
def errors_of_the_program_in_a_region():
    errors = []
    with refused(ZeroDivisionError, errors), saver.region("a"):
        1 / 0  # noqa: B018
    with refused(torch.OutOfMemoryError, errors), saver.region("a"):
        filled(4096, 1)
    outside = filled(10, 1)
    with saver.region("a"):
        inside = filled(10, 2)
    base = on_device()
    saver.pause()
    good = holds(outside, 1)
    saver.resume()
    return [[e.split(":")[0] for e in errors], good, on_device() == base, holds(inside, 2) or True]


@check
def unsupported_parts_of_the_package():
    errors, values = [], []
    for use in (
        lambda: saver.region(enable_disk_backup=True).__enter__(),
        lambda: saver.set_disk_backup_dir("/tmp"),
        lambda: setattr(saver, "retain_cpu_backup", True),
        lambda: setattr(saver, "hook_mode", "another"),
        lambda: saver.disable(dispose_mem_pool_after_use=False).__enter__(),
        lambda: saver.region(cpu_backup_backend="pinned").__enter__(),
        lambda: saver.region(enable_cpu_backup=True, cpu_backup_backend="disk").__enter__(),
    ):
        with refused((ferro_alloc.FerroError, ValueError), errors):
            use()
    for mode in ("preload", "torch"):
        saver.hook_mode = mode
        values.append(saver.hook_mode)
    saver.retain_cpu_backup = False
    saver.memory_margin_bytes = 3 * MIB + 1
    values += [saver.memory_margin_bytes, saver.retain_cpu_backup, saver.enabled]
    with saver.region("a", enable_cpu_backup=True, cpu_backup_backend="mmap"):
        a = filled(2, 1)
    values.append(saver.get_cpu_backup(a))
    saver.pause()
    with refused(ferro_alloc.FerroError, errors):
        saver.get_cpu_backup(a)
    saver.resume()
    return [[e.split(":")[0] for e in errors], values, ["headroom_mb:4" in w for w in warnings]]


@check
def processes_that_are_started():
    os.environ.pop("FERRO_ALLOC", None)
    values = []
    with configure_subprocess():
        values.append(os.environ["FERRO_ALLOC"])
    values.append(os.environ.get("FERRO_ALLOC"))
    os.environ["FERRO_ALLOC"] = "strict"
    with configure_subprocess():
        values.append(os.environ["FERRO_ALLOC"])
    values.append(os.environ.pop("FERRO_ALLOC"))
    return values


@check
def uninstalled_allocators_still_pause_and_resume():
    with saver.region("a", enable_cpu_backup=True):
        a = filled(20, 1)
    full = on_device()
    ferro_alloc.uninstall()
    errors = []
    with refused(ferro_alloc.FerroError, errors), saver.region("a"):
        pass
    saver.pause()
    down = full - on_device()
    saver.resume()
    good = holds(a, 1)
    ferro_alloc.install()
    return [down, good, "install()" in errors[0]]


if DEVICES > 1:

    @check
    def several_devices():
        tensors = []
        for index in range(DEVICES):
            with torch.cuda.device(index), saver.region("a", enable_cpu_backup=True):
                tensors.append(filled(20 + index, index))
                tensors.append(filled(10, 7, device=f"cuda:{(index + 1) % DEVICES}"))
        full = [on_device(index) for index in range(DEVICES)]
        saver.pause()
        down = [full[index] - on_device(index) for index in range(DEVICES)]
        saver.resume()
        good = all(
            holds(tensors[2 * n], n) and holds(tensors[2 * n + 1], 7) for n in range(DEVICES)
        )
        return [down, good, [on_device(index) for index in range(DEVICES)] == full]


print(json.dumps(seen))
sys.stdout.flush()
