"""The tests of the published design of an allocator, by name."""

import random

from tests.python.feature_checks import KIB, MIB, check, finish, take

import torch

import ferro_alloc
from ferro_alloc import sizes

PAGE = 2 * MIB


def counts():
    return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()


def view():
    torch.empty(1, device="cuda")
    torch.cuda.empty_cache()
    return ferro_alloc.device()


def page_of(*sizes):
    """Blocks of these sizes side by side, at most 1 MiB in all, and blocks that fill their page."""
    blocks = [take(size) for size in sizes]
    rest = PAGE - sum(sizes)
    return blocks, [take(rest - MIB), take(MIB)]


def in_use_by(stream, size):
    """A block with work on another stream, which is queued."""
    block = take(size)
    block.record_stream(stream)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000)
    return block


@check
def new_allocator_starts_at_zero():
    # The first check, so nothing was allocated before.
    return counts()


@check
def empty_cache_is_harmless():
    seen = view()
    seen.empty_cache()
    torch.cuda.empty_cache()
    return seen.memory_allocated, seen.memory_reserved


# ---- sizes


@check
def round_size_minimum():
    return [sizes.round_size(size) for size in (0, 1, 511, 512)]


@check
def round_size_multiples():
    return [sizes.round_size(size) for size in (513, 1024, 1025)]


@check
def alloc_size_small():
    return [sizes.allocation_size(size) // MIB for size in (512, sizes.SMALL_SIZE)]


@check
def alloc_size_mid():
    sizes_of = (sizes.SMALL_SIZE + 1, sizes.MIN_LARGE_ALLOC - 1)
    return [sizes.allocation_size(size) // MIB for size in sizes_of]


@check
def alloc_size_large():
    sizes_of = (sizes.MIN_LARGE_ALLOC, sizes.MIN_LARGE_ALLOC + 1)
    return [sizes.allocation_size(size) // MIB for size in sizes_of]


# ---- blocks


@check
def block_pool_insert_find():
    (block,), rest = page_of(4 * KIB)
    address, reserved = block.data_ptr(), torch.cuda.memory_reserved()
    del block
    found = take(512)
    return found.data_ptr() == address, torch.cuda.memory_reserved() == reserved, len(rest)


@check
def block_pool_respects_stream():
    (block,), rest = page_of(4 * KIB)
    address, other = block.data_ptr(), torch.cuda.Stream()
    del block
    with torch.cuda.stream(other):
        elsewhere = take(512)
    found = take(512)
    return elsewhere.data_ptr() != address, found.data_ptr() == address, len(rest)


@check
def block_pool_finds_smallest_fit():
    blocks, rest = page_of(4 * KIB, 512, KIB, 512)
    address = blocks[2].data_ptr()
    del blocks[2], blocks[0]
    return take(768).data_ptr() == address, len(rest)


@check
def split_block_creates_remainder():
    (block,), rest = page_of(8 * KIB)
    address, reserved = block.data_ptr(), torch.cuda.memory_reserved()
    del block
    first, remainder = take(KIB), take(7 * KIB)
    return [
        [part.data_ptr() - address for part in (first, remainder)],
        torch.cuda.memory_reserved() == reserved,
        len(rest),
    ]


@check
def coalesce_merges_adjacent_blocks():
    blocks, rest = page_of(2 * KIB, 2 * KIB, 4 * KIB)
    address, reserved = blocks[0].data_ptr(), torch.cuda.memory_reserved()
    middle = blocks.pop(1)
    blocks.clear()
    del middle
    merged = take(8 * KIB)
    return merged.data_ptr() == address, torch.cuda.memory_reserved() == reserved, len(rest)


@check
def should_split_small_pool():
    (block,), rest = page_of(2 * KIB)
    address = block.data_ptr()
    del block
    parts = [take(KIB), take(KIB)]
    offsets = [part.data_ptr() - address for part in parts]
    parts.clear()
    before = torch.cuda.memory_allocated()
    whole = take(1800)
    return offsets, torch.cuda.memory_allocated() - before, whole.data_ptr() == address, len(rest)


@check
def should_split_large_pool():
    hole, *rest = [take(size * MIB) for size in (4, 8, 8)]
    del hole
    before = torch.cuda.memory_allocated()
    whole = take(7 * MIB // 2)
    taken = torch.cuda.memory_allocated() - before
    del whole
    half = take(2 * MIB)
    taken_by_half = torch.cuda.memory_allocated() - before
    other = take(2 * MIB)
    return [
        *(taken // KIB, taken_by_half // KIB),
        other.data_ptr() - half.data_ptr() == 2 * MIB,
        torch.cuda.memory_reserved() // MIB,
        len(rest),
    ]


@check
def stream_uses_prevent_reuse():
    side = torch.cuda.Stream()
    block = in_use_by(side, 4 * KIB)
    address = block.data_ptr()
    del block
    meanwhile = take(4 * KIB)
    torch.cuda.synchronize()
    torch.cuda.memory_stats()
    afterwards = [take(4 * KIB) for _ in range(2)]
    return meanwhile.data_ptr() != address, address in [each.data_ptr() for each in afterwards]


@check
def stream_uses_prevent_merge():
    side = torch.cuda.Stream()
    first, second = take(2 * KIB), in_use_by(side, 2 * KIB)
    address, rest = first.data_ptr(), [take(MIB), take(MIB - 4 * KIB)]
    adjacent = second.data_ptr() - address
    del first, second
    meanwhile = take(4 * KIB)
    torch.cuda.synchronize()
    # PyTorch's allocator looks for completed work in a request, ferro_alloc in statistics.
    take(2 * MIB)
    torch.cuda.memory_stats()
    blocks = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
    merged = [block["size"] for block in blocks if block["address"] == address]
    return adjacent, meanwhile.data_ptr() != address, merged, len(rest)


# ---- numbers


@check
def cache_find_and_insert_roundtrip():
    seen = view()
    before = seen.cache_stats
    block = take(2 * KIB)
    missed = seen.cache_stats.misses - before.misses
    del block
    found = take(512)
    after = seen.cache_stats
    from_cache = after.hits + after.late_hits - before.hits - before.late_hits
    return missed, after.misses - before.misses, from_cache, found.nbytes


@check
def empty_cache_clears_pools():
    seen = view()
    take(KIB)
    cached = len(torch.cuda.memory_snapshot())
    seen.empty_cache()
    return cached, len(torch.cuda.memory_snapshot()), seen.memory_reserved


@check
def debug_impl():
    seen = view()
    block = take(KIB)
    text = repr(seen)
    return ["DeviceMemoryView" in text, f"memory_allocated={block.nbytes}," in text]


@check
def alloc_increases_allocated_bytes():
    seen = view()
    seen.reset_peak_stats()
    block = torch.zeros(256, device="cuda")
    return seen.memory_allocated, seen.max_memory_allocated, block.nbytes


@check
def free_decreases_allocated_bytes():
    seen = view()
    block = torch.zeros(128, device="cuda")
    before = seen.memory_allocated
    del block
    return before, seen.memory_allocated


@check
def peak_tracks_maximum():
    seen = view()
    seen.reset_peak_stats()
    first, second = torch.zeros(100, device="cuda"), torch.zeros(200, device="cuda")
    found = [seen.max_memory_allocated]
    del first
    found += [seen.max_memory_allocated, seen.memory_allocated]
    del second
    return [*found, seen.memory_allocated, seen.max_memory_allocated]


@check
def reset_peak_stats_lowers_peak():
    seen = view()
    block = torch.zeros(512, device="cuda")
    del block
    before = seen.max_memory_allocated
    seen.reset_peak_stats()
    return before >= 2 * KIB, seen.max_memory_allocated


@check
def alloc_copy_tracks_bytes():
    seen = view()
    block = torch.tensor([random.random() for _ in range(4)], dtype=torch.float64).cuda()
    found = [seen.requested_bytes, seen.memory_allocated]
    del block
    return [*found, seen.requested_bytes, seen.memory_allocated]


@check
def zero_element_alloc():
    seen = view()
    block = torch.zeros(0, device="cuda")
    found = [seen.memory_allocated, block.numel()]
    del block
    return [*found, seen.memory_allocated]


finish()
