"""Pages of MemPools move within their pool until something is captured into it."""

import contextlib

from tests.python.feature_checks import MIB, check, error_of, filled, finish, take, words

import ferro_alloc
import torch

TOTAL = torch.cuda.mem_get_info()[1]
side = torch.cuda.Stream()


@contextlib.contextmanager
def within(pool, stream=None):
    with torch.cuda.stream(stream), torch.cuda.use_mem_pool(pool):
        yield


def leave_holes(pool, stream=None):
    """Every sixth of 24 blocks of 4 MiB stays."""
    with within(pool, stream):
        return [filled(4 * MIB, tag) for tag in range(24)][::6]


def check_kept(kept):
    assert all(torch.equal(block.cpu(), words(6 * i, 4 * MIB)) for i, block in enumerate(kept))


def backed(pool):
    """The addresses of its pages."""
    found = set()
    for segment in pool.snapshot():
        begin = segment["address"]
        found.update(range(begin, begin + segment["total_size"], 2 * MIB))
    return found


def size_of(pool):
    return sum(segment["total_size"] for segment in pool.snapshot())


def pages_moved():
    return ferro_alloc.status().devices[0].pages_moved


@check
def a_free_block_of_most_of_the_card_serves_a_larger_request():
    pool = torch.cuda.MemPool()
    size = TOTAL // 10 * 9 // MIB * MIB
    with within(pool):
        pieces = [take(TOTAL // 5) for _ in range(3)]
        del pieces
        larger = filled(size, 7)
    assert torch.equal(larger.cpu(), words(7, size))
    assert size_of(pool) <= TOTAL


@check
def a_pool_on_two_streams_grows_up_to_the_card():
    pool, other = torch.cuda.MemPool(), torch.cuda.MemPool()
    with within(other):
        take(32 * MIB)
    kept = [leave_holes(pool, stream) for stream in (None, side)]
    size = TOTAL - 32 * MIB - 2 * 4 * 4 * MIB
    for stream in (None, side):
        with within(pool, stream):
            large = filled(size, 11)
        torch.cuda.synchronize()
        assert torch.equal(large.cpu(), words(11, size))
        for blocks in kept:
            check_kept(blocks)
        del large
    assert size_of(other) == 32 * MIB
    assert size_of(pool) == TOTAL - 32 * MIB


@check
def a_request_that_fails_leaves_the_pool_its_pages():
    pool = torch.cuda.MemPool()
    kept = [leave_holes(pool, stream) for stream in (None, side)]
    torch.cuda.synchronize()
    before = size_of(pool)
    with within(pool):
        assert error_of(lambda: take(TOTAL - 16 * MIB))[0] == "OutOfMemoryError"
    assert size_of(pool) == before
    for blocks in kept:
        check_kept(blocks)


@check
def pages_stay_from_the_first_capture_on():
    pool = torch.cuda.MemPool()
    kept = leave_holes(pool)
    with within(pool):
        large = filled(48 * MIB, 3)
    del large
    source = filled(4 * MIB, 5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        middle = [source.clone() for _ in range(3)]
        result = middle[-1].clone()
    del middle
    before, moved = backed(pool), pages_moved()
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / TOTAL)
    with within(pool):
        assert error_of(lambda: take(TOTAL // 2))[0] == "OutOfMemoryError"
    torch.cuda.set_per_process_memory_fraction(1.0)
    with within(pool):
        take(100 * MIB)
    assert before <= backed(pool)
    assert pages_moved() == moved
    for tag in (20, 30):
        source.copy_(filled(4 * MIB, tag))
        graph.replay()
        assert torch.equal(result.cpu(), words(tag, 4 * MIB))
    check_kept(kept)


@check
def a_pool_in_which_a_capture_allocates_keeps_its_pages():
    pool = torch.cuda.MemPool()
    kept = leave_holes(pool)
    source = filled(4 * MIB, 5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), within(pool, torch.cuda.current_stream()):
        result = source.clone()
    moved = pages_moved()
    with within(pool):
        take(80 * MIB)
    assert pages_moved() == moved
    source.copy_(filled(4 * MIB, 40))
    graph.replay()
    assert torch.equal(result.cpu(), words(40, 4 * MIB))
    check_kept(kept)


@check
def a_deleted_pool_returns_pages_that_moved():
    pool = torch.cuda.MemPool()
    kept = leave_holes(pool)
    torch.cuda.synchronize()
    moved = pages_moved()
    with within(pool):
        large = take(80 * MIB)
    assert pages_moved() > moved
    del large, kept, pool
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


finish()
