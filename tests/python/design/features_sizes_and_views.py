"""The numbers of the published design of an allocator: sizes of requests, and views of devices."""

import random
from dataclasses import astuple

from tests.python.feature_checks import ALLOCATOR, KIB, MIB, check, error_of, finish, take

import torch

import ferro_alloc
from ferro_alloc import Config, sizes

LAYOUT = "segments" if ALLOCATOR == "segments" else "pages"
REQUESTS = (
    *(1, 511, 512, 513, 5000, MIB - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB + 7),
    *(10 * MIB - 1, 10 * MIB, 10 * MIB + 1, 19 * MIB, 21 * MIB, 64 * MIB + 512),
)


def view():
    torch.empty(1, device="cuda")
    torch.cuda.empty_cache()
    return ferro_alloc.device()


def agrees(numbers):
    """Whether the numbers equal those with the same names in torch.cuda."""
    stats = torch.cuda.memory_stats()
    return (
        numbers.memory_allocated == torch.cuda.memory_allocated()
        and numbers.max_memory_allocated == torch.cuda.max_memory_allocated()
        and numbers.memory_reserved == torch.cuda.memory_reserved()
        and numbers.requested_bytes == stats["requested_bytes.all.current"]
        and numbers.blocks == stats["allocation.all.current"]
    )


# ---- sizes


@check
def a_block_has_the_rounded_size():
    wrong = []
    for size in REQUESTS:
        before = torch.cuda.memory_allocated()
        block = take(size)
        if torch.cuda.memory_allocated() - before != sizes.round_size(size):
            wrong.append(size)
        del block
    return wrong


@check
def a_rounded_size_rounds_to_itself():
    draw = random.Random(1)
    drawn = [draw.randrange(1, 1 << draw.randrange(1, 40)) for _ in range(200)]
    rounded = [sizes.round_size(size) for size in drawn]
    return [
        all(sizes.round_size(size) == size for size in rounded),
        all(0 <= size - asked < 512 for size, asked in zip(rounded, drawn, strict=True)),
        {size % sizes.MIN_BLOCK_SIZE for size in rounded} == {0},
        sizes.round_size(0),
    ]


@check
def a_request_takes_its_allocation_size_from_the_driver():
    wrong = []
    for size in REQUESTS:
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        block = take(size)
        taken = torch.cuda.memory_reserved() - before
        if taken != sizes.allocation_size(sizes.round_size(size)):
            wrong.append((size, taken))
        del block
    return wrong


@check
def segments_are_pytorchs():
    torch.cuda.empty_cache()
    found = []
    for size in (KIB, MIB + 1, 10 * MIB - 1, 10 * MIB + 1):
        block = take(size)
        found.append(torch.cuda.memory_reserved() // MIB)
        del block
        torch.cuda.empty_cache()
    return found


@check
def pages_are_whole():
    sizes_of = [sizes.allocation_size(sizes.round_size(size)) for size in REQUESTS]
    larger = Config(page_size_mb=8)
    return [
        sorted({size % (2 * MIB) for size in sizes_of}),
        [sizes.allocation_size(size, larger) // MIB for size in (1, 8 * MIB, 8 * MIB + 1)],
    ]


# ---- views


@check
def a_view_has_the_numbers_of_torch():
    seen, blocks, draw = view(), [], random.Random(2)
    found = []
    for _ in range(100):
        if blocks and draw.random() < 0.45:
            blocks.pop(draw.randrange(len(blocks)))
        else:
            blocks.append(take(draw.randrange(1, 1 << draw.randrange(1, 25))))
        found.append(agrees(seen.numbers()))
    seen.reset_peak_stats()
    found.append(agrees(seen.numbers()))
    blocks.clear()
    seen.empty_cache()
    return [all(found), agrees(seen.numbers()), seen.memory_reserved == seen.memory_allocated]


@check
def a_peak_is_reset_to_the_current_value():
    seen = view()
    seen.reset_peak_stats()
    before = seen.memory_allocated
    blocks = [take(4 * MIB) for _ in range(3)]
    del blocks[1:]
    peak = seen.max_memory_allocated
    seen.reset_peak_stats()
    return [
        (peak - before) // MIB,
        (seen.max_memory_allocated - before) // MIB,
        torch.cuda.max_memory_allocated() == seen.max_memory_allocated,
        len(blocks),
    ]


@check
def cached_bytes_are_what_no_block_uses():
    seen = view()
    blocks = [take(6 * MIB) for _ in range(4)]
    del blocks[0], blocks[1]
    found = []
    numbers = seen.numbers()
    found.append(numbers.cached_bytes == numbers.memory_reserved - numbers.memory_allocated)
    found.append(numbers.cached_bytes // MIB)
    stream = torch.cuda.Stream()
    blocks[0].record_stream(stream)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1000)
    del blocks[0]
    numbers = seen.numbers()
    active = torch.cuda.memory_stats()["active_bytes.all.current"]
    found.append(numbers.cached_bytes <= numbers.memory_reserved - active)
    torch.cuda.synchronize()
    return [*found, len(blocks)]


@check
def requests_are_hits_or_late_hits_or_misses():
    seen, draw, blocks = view(), random.Random(3), []
    before = seen.cache_stats
    counted = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(200):
        if blocks and draw.random() < 0.5:
            blocks.pop(draw.randrange(len(blocks)))
        else:
            blocks.append(take(draw.randrange(1, 1 << draw.randrange(1, 24))))
    after = seen.cache_stats
    requests = torch.cuda.memory_stats()["allocation.all.allocated"] - counted
    outcomes = [now - then for then, now in zip(astuple(before), astuple(after), strict=True)]
    take(MIB)
    then = seen.cache_stats
    take(MIB)
    repeated = [b - a for a, b in zip(astuple(then), astuple(seen.cache_stats), strict=True)]
    return [sum(outcomes) == requests, min(outcomes[0], outcomes[2]) > 0, repeated]


@check
def views_are_of_one_device():
    first, second = view(), ferro_alloc.device(1)
    torch.empty(1, device="cuda:1")
    before = first.numbers(), second.memory_allocated
    with torch.cuda.device(1):
        block = take(8 * MIB)
    found = [
        first.memory_allocated == before[0].memory_allocated,
        (second.memory_allocated - before[1]) // MIB,
        ferro_alloc.device("cuda:1") == second != first,
        error_of(lambda: ferro_alloc.device(2))[0],
    ]
    del block
    second.empty_cache()
    return found


finish()
