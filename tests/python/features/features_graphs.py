"""CUDA graphs: capture, replay, pools, failures, threads, cudagraph trees."""

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
    statistic,
    take,
    words,
)

import torch
from torch import nn


def captured_copy(source, pool=None, mode="global"):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode=mode):
        between = source.clone()
        result = between.clone()
        del between
    return graph, result


def capture_and_synchronise(graph, source, stream):
    with torch.cuda.graph(graph, stream=stream):
        source.clone()
        torch.cuda.synchronize()


def invalidate_captures(count, source):
    """Makes a call that is illegal in a capture; torch 2.11 does not notify the allocator."""
    stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
    for _ in range(count):
        graph = torch.cuda.CUDAGraph()
        kind, _ = error_of(lambda g=graph: capture_and_synchronise(g, source, stream))
        # __exit__ raised before it could restore the stream.
        torch.cuda.set_stream(current)
        assert kind in ("AcceleratorError", "RuntimeError"), kind
        del graph
        gc.collect()
    torch.cuda.synchronize()


@check
def capture_and_replay():
    source = filled(64 * KIB, 1)
    graph, result = captured_copy(source)
    for tag in (10, 20, 30):
        source.copy_(words(tag, 64 * KIB))
        graph.replay()
        assert torch.equal(result.cpu(), words(tag, 64 * KIB))


@check
def memory_of_a_graph_is_its_own_until_the_graph_is_gone():
    torch.cuda.empty_cache()
    source = filled(12 * MIB, 1)
    reserved = torch.cuda.memory_reserved()
    graph, result = captured_copy(source)
    pool = graph.pool()
    owners = [s["segment_pool_id"] for s in torch.cuda.memory_snapshot()
              if s["address"] <= result.data_ptr() < s["address"] + s["total_size"]]  # fmt: skip
    assert owners == [tuple(pool)]
    torch.cuda.empty_cache()
    others = [take(12 * MIB) for _ in range(8)]
    graph.replay()
    assert torch.equal(result.cpu(), words(1, 12 * MIB))
    del others, graph
    torch.cuda.empty_cache()
    # The result keeps its memory.
    assert torch.cuda.memory_reserved() >= reserved + 12 * MIB
    assert torch.equal(result.cpu(), words(1, 12 * MIB))
    del result
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved


@check
def graphs_that_share_a_pool_reuse_its_memory():
    source, handle = filled(8 * MIB, 3), torch.cuda.graph_pool_handle()
    first, first_result = captured_copy(source, handle)
    reserved = torch.cuda.memory_reserved()
    second, second_result = captured_copy(source, handle)
    # Room for a second result, but the temporary of the first capture serves again.
    # Native takes segments of 20 MiB.
    assert torch.cuda.memory_reserved() - reserved <= (10 if FERRO else 40) * MIB
    assert tuple(first.pool()) == tuple(second.pool()) == tuple(handle)
    for tag in (5, 6):
        source.copy_(words(tag, 8 * MIB))
        first.replay()
        second.replay()
        assert torch.equal(first_result.cpu(), words(tag, 8 * MIB))
        assert torch.equal(second_result.cpu(), words(tag, 8 * MIB))


@check
def graphs_captured_into_a_mempool():
    pool, source = torch.cuda.MemPool(), filled(MIB, 3)
    counts = [pool.use_count()]
    graph, result = captured_copy(source, pool.id)
    counts.append(pool.use_count())
    graph.replay()
    assert torch.equal(result.cpu(), words(3, MIB))
    del graph
    counts.append(pool.use_count())
    return counts


@check
def forked_streams_in_a_capture():
    source, side = filled(256 * KIB, 7), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        left = source.clone()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            right = left.clone()
        left.record_stream(side)
        del left
        later = [torch.empty(64 * KIB, dtype=torch.int32, device="cuda") for _ in range(3)]
        for tensor in later:
            tensor.copy_(source)
        main.wait_stream(side)
    for tag in (8, 9):
        source.copy_(words(tag, 256 * KIB))
        graph.replay()
        for tensor in (right, *later):
            assert torch.equal(tensor.cpu(), words(tag, 256 * KIB))


@check
def a_capture_that_fails_by_an_exception():
    reserved = torch.cuda.memory_reserved()
    source, stream = filled(MIB, 1), torch.cuda.Stream()
    for _ in range(3):
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream):
                source.clone()
                raise KeyError("the program's own")
        except KeyError:
            pass
        del graph
    assert torch.equal(source.cpu(), words(1, MIB))
    graph, result = captured_copy(source)
    graph.replay()
    assert torch.equal(result.cpu(), words(1, MIB))
    del graph, result, source
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved + 4 * MIB


@check
def a_capture_that_is_invalidated():
    source = filled(MIB, 1)
    invalidate_captures(3, source)
    assert torch.equal(source.cpu(), words(1, MIB))
    kept = take(30 * MIB)
    graph, result = captured_copy(source)
    graph.replay()
    assert torch.equal(result.cpu(), words(1, MIB))
    del graph, result, kept
    if FERRO:
        # The default pool is served and emptied as if nothing had happened.
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() <= 8 * MIB, torch.cuda.memory_reserved()


@check
def programs_go_on_without_the_graphs_that_failed():
    """Failed captures hold no memory, even without another capture."""
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    invalidate_captures(10, filled(MIB, 1))
    torch.cuda.empty_cache()
    if FERRO:
        assert torch.cuda.memory_reserved() <= reserved, torch.cuda.memory_reserved()


@check
def two_captures_on_two_threads():
    barrier, errors = threading.Barrier(2), []

    def work(tag):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                source = filled(MIB, tag)
                stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                barrier.wait()
                graph.capture_begin(capture_error_mode="thread_local")
                between = source.clone()
                barrier.wait()
                result = between.clone()
                del between
                barrier.wait()
                graph.capture_end()
                for repeat in range(5):
                    source.copy_(words(tag + repeat, MIB).pin_memory(), non_blocking=True)
                    graph.replay()
                    assert torch.equal(result.cpu(), words(tag + repeat, MIB))
        except BaseException as error:
            barrier.abort()
            errors.append(repr(error))

    threads = [threading.Thread(target=work, args=(10_000 * i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@check
def allocations_of_others_during_a_capture():
    """Another thread allocates and frees, with uses of two streams, while this one captures."""
    source, results, errors = filled(MIB, 4), [], []
    capturing, done = threading.Event(), threading.Event()

    def work():
        try:
            capturing.wait()
            first, second = torch.cuda.Stream(), torch.cuda.Stream()
            for tag in range(10):
                with torch.cuda.stream(first):
                    kept = filled(512 * KIB, tag)
                second.wait_stream(first)
                with torch.cuda.stream(second):
                    results.append((tag, kept.to("cpu", non_blocking=False)))
                kept.record_stream(second)
                del kept
        except BaseException as error:
            errors.append(repr(error))
        finally:
            done.set()

    thread = threading.Thread(target=work)
    thread.start()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        stream.wait_stream(torch.cuda.default_stream())
        graph.capture_begin(capture_error_mode="thread_local")
        between = source.clone()
        capturing.set()
        done.wait()
        result = between.clone()
        graph.capture_end()
    thread.join()
    assert errors == []
    assert all(torch.equal(found, words(tag, 512 * KIB)) for tag, found in results)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result.cpu(), words(4, MIB))


@check
def graphed_callables():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
    sample = torch.zeros(8, 64, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    for _ in range(3):
        graphed(torch.zeros(8, 64, device="cuda")).sum().backward()
    grads = [p.grad.numel() for p in model.parameters()]
    del graphed
    return grads


@check
def graphs_and_their_generators():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        noise = torch.rand(1000, device="cuda")
    graph.replay()
    return noise.numel()


@check
def a_graph_is_captured_again_after_reset():
    source, graph = filled(MIB, 2), torch.cuda.CUDAGraph()
    for _ in range(3):
        with torch.cuda.graph(graph):
            result = source.clone()
        graph.replay()
        assert torch.equal(result.cpu(), words(2, MIB))
        del result
        graph.reset()
    torch.cuda.empty_cache()
    return statistic("allocation")


@check
def a_graph_dropped_while_it_runs():
    """Its memory is not reused before the work on the stream of the replay is done."""
    source = filled(4 * MIB, 2)
    other, results = torch.cuda.Stream(), []
    torch.cuda.synchronize()
    for _ in range(20):
        graph, result = captured_copy(source)
        with torch.cuda.stream(other):
            graph.replay()
            host = torch.empty(MIB, dtype=torch.int32, pin_memory=True)
            host.copy_(result, non_blocking=True)
        result.record_stream(other)
        results.append(host)
        del graph, result
        torch.cuda.empty_cache()
    torch.cuda.synchronize()
    assert all(torch.equal(host, words(2, 4 * MIB)) for host in results)


@check
def checkpoints_of_a_pool():
    """The calls that cudagraph trees make, by hand."""
    source, handle = filled(MIB, 5), torch.cuda.graph_pool_handle()
    kept = [captured_copy(source, handle)]
    result = kept[0][1]
    live = {result.untyped_storage().data_ptr()}
    assert torch._C._cuda_checkPoolLiveAllocations(0, handle, live)
    assert not torch._C._cuda_checkPoolLiveAllocations(0, handle, set())
    state = torch._C._cuda_getCheckpointState(0, handle)
    kept.append(captured_copy(source, handle))
    second_result = kept[1][1]
    torch.cuda.synchronize()
    address = second_result.data_ptr()
    torch._C._free_And_Remove_DeleterFn(second_result.untyped_storage()._cdata)
    torch._C._cuda_setCheckpointPoolState(0, state, [], [])
    assert torch._C._cuda_checkPoolLiveAllocations(0, handle, live)
    third, third_result = captured_copy(source, handle)
    assert third_result.data_ptr() == address
    third.replay()
    assert torch.equal(third_result.cpu(), words(5, MIB))
    assert torch._C._has_Standard_Deleter(third_result.untyped_storage()._cdata)


@check
def cudagraph_trees():
    """Several functions, branches and new shapes over one pool, with every self-check on."""
    import torch._inductor.config as config

    config.triton.slow_path_cudagraph_asserts = True
    config.triton.fast_path_cudagraph_asserts = True
    config.triton.cudagraph_support_input_mutation = True

    # Uses only copies, which are real on the simulated GPU; otherwise this operator is a kernel.
    def copy_each(targets, sources):
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)

    torch._foreach_copy_ = copy_each

    @torch.compile(backend="cudagraphs", dynamic=False)
    def twice(x):
        return x.clone().clone()

    @torch.compile(backend="cudagraphs", dynamic=False)
    def mixed(x):
        y = x.clone()
        return y, y.reshape(2, -1), x.clone()

    @torch.compile(backend="cudagraphs", dynamic=False)
    def shorten(x):
        return x[: x.shape[0] // 2].clone()

    kept, checked = None, 0
    for step in range(24):
        torch.compiler.cudagraph_mark_step_begin()
        size = (256 * KIB, MIB)[step % 2 if step > 5 else 0]
        first = twice(filled(size, step))
        if step % 3:
            _, second, third = mixed(first)
            last = shorten(third)
        else:
            second, last = first, shorten(shorten(first))
        whole = words(step, size)
        assert torch.equal(first.cpu(), whole)
        assert torch.equal(second.cpu().reshape(-1), whole)
        assert torch.equal(last.cpu(), whole[: last.numel()])
        checked += last.numel()
        # Results may die at any time, before the next step or after it.
        kept = last if step % 4 else None
        del first, second, last
    assert kept is not None
    del kept, third
    torch._dynamo.reset()
    gc.collect()
    return checked


@check
def trees_leave_nothing_behind():
    torch._C._cuda_clearCublasWorkspaces()
    gc.collect()
    torch.cuda.empty_cache()
    pools = {s["segment_pool_id"] for s in torch.cuda.memory_snapshot() if s["allocated_size"]}
    assert pools <= {(0, 0)}, pools


finish()
