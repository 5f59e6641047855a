"""Each pool has one object, which keeps its buffers as long as a program or a graph uses it.

Each check frees memory, overwrites all free memory, and compares what a graph reads.
"""

import copy
import gc
import itertools
import threading
import weakref

from tests.python.feature_checks import (
    ALLOCATOR,
    FERRO,
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
from ferro_alloc.graphs import CaptureGuard, CapturePool, CapturedGraph

JUNK = 9_000_000
PAGES = ALLOCATOR == "ferro"


def pool_of(handle):
    return graphs.capture_pool_for_handle(handle)


def fill_free_memory():
    gc.collect()
    torch.cuda.synchronize()
    junk = [filled(MIB, JUNK) for _ in range(32)]
    torch.cuda.synchronize()
    return junk


def reads(graph, result, tag):
    """Whether a launch gives the recorded bytes after all free memory was overwritten."""
    junk = fill_free_memory()
    result.zero_()
    graph.launch()
    torch.cuda.synchronize()
    right = torch.equal(result.cpu(), words(tag, MIB))
    return right and all(torch.equal(part.cpu(), words(JUNK, MIB)) for part in junk)


def released_pool_with_a_buffer(tag):
    """A pool whose handle is released; its first buffer is the only reference to a tensor."""
    handle = graphs.graph_pool_handle("decode")
    pool = pool_of(handle)
    pool.record_buffer(filled(MIB, tag))
    graphs.release_graph_pool_handle(handle)
    return pool


def recorded(tag, pool):
    source = filled(MIB, tag)
    pool.record_buffer(source)
    return source


# ---- one object


@check
def a_pool_is_one_object():
    handle = graphs.graph_pool_handle("decode")
    pool = pool_of(handle)
    with CaptureGuard(handle) as by_handle:
        take(MIB).zero_()
    with CaptureGuard(pool) as by_object:
        take(MIB).zero_()
    with torch.cuda.graph(torch.cuda.CUDAGraph(), pool=handle):
        take(MIB).zero_()
    seen = [pool_of(handle), by_handle.graph.pool, by_object.graph.pool]
    seen += [copy.copy(pool), *copy.deepcopy([pool])]
    found = []
    threads = [threading.Thread(target=lambda: found.append(pool_of(handle))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    graphs.release_graph_pool_handle(handle)
    with CaptureGuard(handle) as later:
        take(MIB).zero_()
    seen += [later.graph.pool, CapturedGraph(by_handle.graph.cuda_graph).pool, *found]
    return [each is pool for each in seen].count(True), pool_of(handle) is None


# ---- what keeps a pool


@check
def a_held_pool_keeps_its_buffers_without_its_handle():
    result, counts = take(MIB).view(torch.int32), []
    pool = released_pool_with_a_buffer(1)
    source = recorded(3, pool)
    with CaptureGuard(pool) as guard:
        result.copy_(source)
    graph = guard.graph
    counts.append((graph.buffer_count, pool.buffer_count))
    del pool, guard, source
    return counts, reads(graph, result, 3)


@check
def a_capture_by_the_number_of_a_held_pool_is_into_that_pool():
    result = take(MIB).view(torch.int32)
    pool = released_pool_with_a_buffer(1)
    source, number = recorded(3, pool), tuple(pool.handle)
    with CaptureGuard(number) as guard:
        result.copy_(source)
    same, graph = guard.graph.pool is pool, guard.graph
    del pool, guard, source
    return same, graph.buffer_count, reads(graph, result, 3)


@check
def a_graphed_callable_keeps_the_pool():
    result = take(MIB).view(torch.int32)
    pool = released_pool_with_a_buffer(1)
    source = recorded(3, pool)
    sources = [source]
    graphed = graphs.make_graphed_callable(
        lambda: result.copy_(sources[0]), (), pool=pool, num_warmup_iters=1
    )
    same = graphed.graph.pool is pool
    sources.clear()
    del pool, source
    return same, graphed.graph.buffer_count, reads(graphed.graph, result, 3)


@check
def a_plain_graph_keeps_the_pool():
    result, plain = take(MIB).view(torch.int32), torch.cuda.CUDAGraph()
    pool = released_pool_with_a_buffer(1)
    source = recorded(3, pool)
    with torch.cuda.graph(plain, pool=pool.handle):
        result.copy_(source)
    kept = weakref.ref(pool)
    del pool, source
    fill_free_memory()
    unheld, graph = kept() is None, CapturedGraph(plain)
    return unheld, graph.buffer_count, graph.pool.name, reads(graph, result, 3)


@check
def a_plain_graph_alone_keeps_the_pool_and_the_last_one_drops_it():
    handle = graphs.graph_pool_handle()
    kept = take(MIB)
    seen = weakref.ref(kept)
    pool_of(handle).record_buffer(kept)
    del kept
    plain = [torch.cuda.CUDAGraph() for _ in range(2)]
    for graph in plain:
        with torch.cuda.graph(graph, pool=handle):
            take(MIB).zero_()
    graphs.release_graph_pool_handle(handle)
    alive = [seen() is not None]
    plain.pop()
    graph = None
    gc.collect()
    alive.append(seen() is not None)
    plain.pop()
    gc.collect()
    graphs.graph_pool_handle()  # before the first install, pools are dropped by such a call
    return *alive, seen() is None


@check
def the_pool_of_a_destroyed_graph_keeps_its_buffers():
    result, handle = take(MIB).view(torch.int32), graphs.graph_pool_handle("decode")
    with CaptureGuard(handle) as guard:
        take(MIB).zero_()
    first = guard.graph
    graphs.release_graph_pool_handle(handle)
    pool = first.pool
    source = recorded(3, pool)
    del first, guard
    fill_free_memory()
    with CaptureGuard(pool) as guard:
        result.copy_(source)
    graph = guard.graph
    del pool, guard, source
    return graph.buffer_count, graph.pool.name, reads(graph, result, 3)


@check
def a_capture_without_a_pool_gets_one_when_asked():
    result, source = take(MIB).view(torch.int32), filled(MIB, 3)
    capture = graphs.begin_capture()
    result.copy_(source)
    pool = capture.pool
    pool.record_buffer(source)
    graph = capture.end()
    same = graph.pool is pool is capture.pool
    del capture, pool, source
    return same, graph.has_pool, graph.buffer_count, reads(graph, result, 3)


@check
def a_running_capture_keeps_the_pool():
    result = take(MIB).view(torch.int32)
    pool = released_pool_with_a_buffer(1)
    source = recorded(3, pool)
    with CaptureGuard(pool) as guard:
        del pool
        gc.collect()
        result.copy_(source)
    del source
    return guard.graph.buffer_count, reads(guard.graph, result, 3)


# ---- what drops a pool


@check
def buffers_go_with_the_last_user():
    """The users are the object and the graphs; the handle is released before or between them."""
    outcomes = []
    for order in (
        ("handle", "pool", "graph"),
        ("pool", "graph", "handle"),
        ("graph", "handle", "pool"),
    ):
        users = {"handle": graphs.graph_pool_handle()}
        users["pool"] = pool_of(users["handle"])
        kept = take(MIB)
        seen = weakref.ref(kept)
        users["pool"].record_buffer(kept)
        del kept
        with CaptureGuard(users["pool"]) as guard:
            take(MIB).zero_()
        users["graph"] = guard.graph
        del guard
        handle, alive = users["handle"], []
        for user in order:
            if user == "handle":
                graphs.release_graph_pool_handle(handle)
            del users[user]
            gc.collect()
            alive.append(seen() is not None)
        outcomes.append([*alive, pool_of(handle) is None])
    return outcomes


@check
def a_handle_that_is_used_after_its_release_is_a_new_pool():
    handle = graphs.graph_pool_handle("decode")
    pool_of(handle).record_buffer(take(MIB))
    pool_of(handle).seal()
    graphs.release_graph_pool_handle(handle)
    gone = pool_of(handle) is None
    with CaptureGuard(handle) as guard:
        take(MIB).zero_()
    fresh = guard.graph.pool
    state = fresh.name, fresh.buffer_count, fresh.is_sealed
    same = fresh.handle == handle
    del fresh, guard
    gc.collect()
    return gone, state, same, pool_of(handle) is None


@check
def a_pool_of_ones_own_releases_its_memory():
    torch.cuda.empty_cache()
    reserved, allocated = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    pool = CapturePool("decode")
    known = pool_of(pool.handle) is pool
    pool.record_buffer(take(5 * MIB))
    with CaptureGuard(pool) as guard:
        output = take(9 * MIB).zero_()
    graph = guard.graph
    grown = torch.cuda.memory_allocated() - allocated >= 14 * MIB
    same, handle = graph.pool is pool, pool.handle
    del graph, guard, output
    kept = torch.cuda.memory_allocated() - allocated
    del pool
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    left = torch.cuda.memory_reserved() - reserved, torch.cuda.memory_allocated() - allocated
    return known, grown, same, kept >= 5 * MIB, left, pool_of(handle) is None


# ---- memory


def reserved():
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_reserved()


def capture_with_scratch(pool):
    with CaptureGuard(pool) as guard:
        take(40 * MIB).zero_()
    return guard.graph


def plain_graph(pool):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.handle):
        take(40 * MIB).zero_()
    return graph


def in_mem_pool(pool):
    with torch.cuda.use_mem_pool(pool.handle):
        take(40 * MIB)


def home():
    torch.cuda.set_stream(torch.cuda.default_stream())  # torch.cuda.graph leaves its own behind


@check
def memory_goes_with_the_last_user():
    """At once where memory comes in pages, else with the next emptying of the cache."""

    def by_handle(pool):
        handle = graphs.graph_pool_handle()
        return [capture_with_scratch(handle), lambda: graphs.release_graph_pool_handle(handle)]

    kinds = {
        "object": lambda pool: [capture_with_scratch(pool), pool],
        "graph": lambda pool: [pool, capture_with_scratch(pool)],
        "plain graph": lambda pool: [pool, plain_graph(pool)],
        "graphs": lambda pool: [capture_with_scratch(pool), plain_graph(pool), pool],
        "handle": by_handle,
        "no graph": lambda pool: [in_mem_pool(pool), pool],
    }
    seen = {}
    for kind, make in kinds.items():
        torch.cuda.empty_cache()
        before, users = reserved(), make(CapturePool())
        steps = [reserved() - before >= 40 * MIB]
        while users:
            torch.cuda.synchronize()
            user = users.pop(0)
            if callable(user):
                user()
            del user
            left = reserved() - before  # the default pool has grown too
            steps.append(left < 8 * MIB if PAGES and not users else left >= 40 * MIB)
        torch.cuda.empty_cache()
        if not all(steps) or reserved() != before:
            seen[kind] = steps
    return seen


@check
def memory_goes_in_another_thread():
    torch.cuda.empty_cache()
    before, pools = reserved(), [CapturePool() for _ in range(8)]
    held = [capture_with_scratch(pool) for pool in pools]
    held.clear()
    threads = [threading.Thread(target=pools.pop) for _ in range(8)]
    del held
    torch.cuda.synchronize()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del threads, thread
    return (reserved() - before < 8 * MIB) is PAGES


@check
def memory_in_use_stays():
    torch.cuda.empty_cache()
    before, pool = reserved(), CapturePool()
    with CaptureGuard(pool) as guard:
        result = filled(MIB, 7)
        take(40 * MIB).zero_()
    guard.graph.launch()
    torch.cuda.synchronize()
    del pool, guard
    left = reserved() - before
    same = torch.equal(result.cpu(), words(7, MIB))
    del result
    torch.cuda.empty_cache()
    return not PAGES or 0 < left < 40 * MIB, same, reserved() - before


@check
def a_capture_runs_on_when_a_pool_goes():
    torch.cuda.empty_cache()
    before, seen = reserved(), []
    for mode in ("global", "thread_local", "relaxed"):
        pool, source = CapturePool(), filled(MIB, 5)
        capture_with_scratch(pool)
        gc.collect()
        torch.cuda.synchronize()
        with CaptureGuard(capture_error_mode=mode) as guard:
            result = source.clone()
            held = torch.cuda.memory_reserved()
            del pool
            seen.append(torch.cuda.memory_reserved() == held)
        guard.graph.launch()
        torch.cuda.synchronize()
        seen.append(torch.equal(result.cpu(), words(5, MIB)))
        del result, source, guard
    torch.cuda.empty_cache()
    return seen, reserved() - before


@check
def an_emptied_pool_is_used_again():
    seen = []
    uses = {
        "capture": capture_with_scratch,
        "plain capture": plain_graph,
        "mem pool": in_mem_pool if FERRO else capture_with_scratch,
    }
    for first, second in itertools.product(uses, uses):
        pool = CapturePool()
        uses[first](pool)
        gc.collect()
        seen.append(error_of(lambda use=uses[second], pool=pool: use(pool))[0])
        home()
    return seen.count("")


@check
def a_pool_whose_graphs_are_gone_is_used_again_or_refused_by_name():
    """PyTorch's allocator cannot use a pool that it has released while memory of it is in use, and
    fails with an assertion by itself."""
    pool = CapturePool("decode")
    seen = [] if FERRO else [True] * 9
    for use in (capture_with_scratch, plain_graph, in_mem_pool) if FERRO else ():
        with CaptureGuard(pool) as guard:
            result = filled(MIB, 7)
        guard.graph.launch()
        torch.cuda.synchronize()
        del guard
        gc.collect()
        kind, text = error_of(lambda use=use: use(pool))
        clear = "'decode'" in text and "memory of it is in use" in text
        good = not kind if ALLOCATOR == "ferro" else kind == "RuntimeError" and clear
        seen += [good, torch.equal(result.cpu(), words(7, MIB))]
        home()
        del result
        gc.collect()
        seen.append(not error_of(lambda use=use: use(pool))[0])
        home()
    return seen


# ---- seals


@check
def a_sealed_pool_refuses_captures_however_it_is_reached():
    handle = graphs.graph_pool_handle("decode")
    pool = pool_of(handle)
    with CaptureGuard(pool) as guard:
        take(MIB).zero_()
    graph = guard.graph
    pool.seal()

    def ways(pool):
        number = tuple(handle)
        yield lambda: graphs.begin_capture(number)
        yield lambda: graphs.begin_capture(torch.cuda.Stream(), pool)
        yield lambda: CaptureGuard(graphs.PoolHandle(number)).__enter__()
        yield lambda: graphs.make_graphed_callable(lambda: take(MIB), (), pool=number)
        if FERRO:
            with torch.cuda.stream(torch.cuda.Stream()):
                yield lambda: torch.cuda.CUDAGraph().capture_begin(pool=number)

    texts = [error_of(way)[1] for way in ways(graph.pool)]
    graphs.release_graph_pool_handle(handle)
    texts += [error_of(way)[1] for way in ways(graph.pool)]
    kept = graph.cuda_graph
    del pool, graph, guard  # a plain graph alone uses the pool now
    gc.collect()
    texts.append(error_of(lambda: graphs.begin_capture(tuple(handle)))[1])
    del kept
    gc.collect()
    good = ["'decode'" in text and "sealed" in text for text in texts]
    return len(good) == good.count(True) == (11 if FERRO else 9), graphs.is_stream_capturing()


@check
def a_sealed_pool_is_not_attached_at_the_end():
    pool = CapturePool("decode")
    pool.seal()
    source, result = filled(MIB, 3), take(MIB).view(torch.int32)
    pool.record_buffer(source)
    capture = graphs.begin_capture()
    result.copy_(source)
    del source
    kind, text = error_of(lambda: graphs.end_capture(capture, pool))
    state = capture.status().name
    pool.unseal()
    graph = graphs.end_capture(capture, pool)
    return kind, "'decode'" in text, state, graph.pool is pool, reads(graph, result, 3)


# ---- handles of PyTorch


@check
def a_handle_of_torch_is_known_once_something_was_captured():
    handle = torch.cuda.graph_pool_handle()
    seen = [pool_of(handle) is None]
    plain, result = torch.cuda.CUDAGraph(), take(MIB).view(torch.int32)
    source = filled(MIB, 3)
    with torch.cuda.graph(plain, pool=handle):
        result.copy_(source)
    pool = pool_of(handle)
    seen += [pool is not None, pool_of(handle) is pool, pool.name == ""]
    pool.name = "theirs"
    pool.record_buffer(source)
    pool.seal()
    number = graphs.graph_pool_handle("other", mem_pool=handle)
    seen += [number == handle, pool.name == "theirs"]
    text = error_of(lambda: graphs.begin_capture(handle))[1]
    seen.append("'theirs'" in text and "sealed" in text)
    graphs.release_graph_pool_handle(handle)
    seen.append(pool_of(handle) is None)
    del pool, source
    graph = CapturedGraph(plain)
    seen += [graph.pool.is_sealed, graph.pool.name == "theirs", reads(graph, result, 3)]
    graph.pool.unseal()
    del graph, plain
    gc.collect()
    return [*seen, pool_of(handle) is None]


@check
def a_mem_pool_is_known_as_long_as_it_lives():
    mem_pool = torch.cuda.MemPool()
    handle = tuple(mem_pool.id)
    pool = pool_of(handle)
    if pool is None:  # PyTorch's allocator knows it with its first memory
        with torch.cuda.use_mem_pool(mem_pool):
            take(MIB)
        pool = pool_of(handle)
    seen = [pool is not None, pool_of(handle) is pool]
    pool.name = "theirs"
    del pool
    gc.collect()
    seen.append(pool_of(handle).name)
    del mem_pool
    gc.collect()
    return *seen, pool_of(handle) is None


# ---- threads


@check
def releases_beside_captures_lose_nothing():
    """A handle is released, and its object dropped, while another thread captures into the pool,
    alternately by the object and by its handle."""
    wrong = []

    def capture(pool, source, captured, begin):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            result = take(MIB).view(torch.int32)
            begin.wait()
            with CaptureGuard(stream, pool) as guard:
                result.copy_(source)
            guard.graph.launch()
            stream.synchronize()
            captured += [guard.graph, result]

    for number in range(60):
        handle = graphs.graph_pool_handle()
        pool = pool_of(handle)
        source = recorded(number, pool)
        torch.cuda.synchronize()
        captured, begin = [], threading.Barrier(2)
        target = pool if number % 2 else handle
        thread = threading.Thread(target=capture, args=(target, source, captured, begin))
        thread.start()
        del target, source
        begin.wait()
        graphs.release_graph_pool_handle(handle)
        if number % 3 == 0:
            thread.join()
        same = pool.buffer_count == 1
        if number % 2:  # otherwise only the object keeps the pool until the capture has begun
            del pool
        thread.join()
        graph, result = captured
        same = same and graph.buffer_count == 1
        if not same or not torch.equal(result.cpu(), words(number, MIB)):
            wrong.append((number, same))
        del graph, result
        captured.clear()
        pool = None
    return wrong


finish()
