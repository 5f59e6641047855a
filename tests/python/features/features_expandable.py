"""Programs that switch `expandable_segments` while they run, as engines do around exports."""

from tests.python.feature_checks import (
    ALLOCATOR,
    MIB,
    check,
    filled,
    finish,
    statistic,
    take,
    words,
)

import torch

WHOLE = 20 * MIB  # fills a segment, so that no remainder serves the next request


def set_expandable(expandable):
    torch._C._accelerator_setAllocatorSettings(f"expandable_segments:{expandable}")


def segment_of(tensor):
    address = tensor.untyped_storage().data_ptr()
    return next(
        segment
        for segment in torch.cuda.memory_snapshot()
        if segment["address"] <= address < segment["address"] + segment["total_size"]
    )


def is_expandable(tensor):
    return segment_of(tensor)["is_expandable"]


def kind_of_handle(tensor):
    """The first bytes of the exported handle: the version, and `c` for cudaMalloc."""
    return tensor.untyped_storage()._share_cuda_()[1][:2]


@check
def while_it_is_off_memory_is_plain():
    set_expandable(True)
    before = take(WHOLE)
    set_expandable(False)
    plain = take(WHOLE)
    size = segment_of(plain)["total_size"]
    set_expandable(True)
    after = take(WHOLE)
    return [is_expandable(tensor) for tensor in (before, plain, after)], size


@check
def plain_memory_has_the_handles_that_libraries_open():
    set_expandable(False)
    plain = filled(4 * MIB, 3)
    kind = str(kind_of_handle(plain))
    set_expandable(True)
    return kind, bool((plain.cpu() == words(3, 4 * MIB)).all())


@check
def what_was_freed_while_it_was_off_is_used_while_it_is_off():
    set_expandable(False)
    plain = take(WHOLE)
    address = plain.data_ptr()
    del plain
    set_expandable(True)
    set_expandable(False)
    again = take(WHOLE)
    set_expandable(True)
    return again.data_ptr() == address


@check
def a_pool_serves_both():
    """A native pool holds both kinds. Ours keeps the first kind: a pool belongs to one
    allocator."""
    pool = torch.cuda.MemPool()
    set_expandable(False)
    with torch.cuda.use_mem_pool(pool):
        plain = take(WHOLE)
    set_expandable(True)
    with torch.cuda.use_mem_pool(pool):
        mapped = take(WHOLE)
    kept = [is_expandable(plain), is_expandable(mapped)]
    ids = {tuple(segment_of(tensor)["segment_pool_id"]) == pool.id for tensor in (plain, mapped)}
    assert kept == ([False, False] if ALLOCATOR == "ferro" else [False, True]), kept
    return ids == {True}


@check
def a_graph_may_be_captured_while_it_is_off():
    set_expandable(False)
    source = filled(MIB, 5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = source + 0
    kept = is_expandable(result)
    set_expandable(True)
    source.copy_(filled(MIB, 6))
    graph.replay()
    return kept, bool((result.cpu() == words(6, MIB)).all())


@check
def memory_of_either_kind_makes_room_for_the_other():
    total = torch.cuda.mem_get_info()[1]
    for expandable in (False, True, False):
        set_expandable(expandable)
        kept = take(total * 3 // 4)
        assert kept.numel()
        del kept
    set_expandable(True)
    return statistic("allocated_bytes")


@check
def the_settings_say_what_the_program_said():
    said = []
    for expandable in (False, True):
        set_expandable(expandable)
        said.append(torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"])
    return said


finish()
