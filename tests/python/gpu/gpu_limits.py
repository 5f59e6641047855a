"""The limits of a card: out of memory, memory limits, and the usage that the driver reports."""

import json
import sys

from benchmarks.harness.processes import use_allocator

allocator = sys.argv[1]
use_allocator(allocator, simulated=False)

import torch

GIB = 1 << 30
MIB = 1 << 20
total = torch.cuda.get_device_properties(0).total_memory


def block(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def used():
    torch.cuda.synchronize()
    free, whole = torch.cuda.mem_get_info()
    return whole - free


def expect_out_of_memory(size):
    try:
        block(size)
    except torch.OutOfMemoryError as error:
        (text,) = error.args
        assert "CUDA out of memory." in text, text
        assert "Tried to allocate" in text, text
        return text
    raise AssertionError(f"{size / GIB:.0f} GiB were handed out")


def still_works():
    weight = torch.randn(1024, 1024, device="cuda", requires_grad=True)
    (weight @ weight).sum().backward()
    assert torch.isfinite(weight.grad).all()


def more_than_the_card_has():
    kept = block(100 * MIB)
    before = torch.cuda.memory_reserved()
    for _ in range(3):
        expect_out_of_memory(2 * total)
    assert torch.cuda.memory_reserved() == before
    del kept
    still_works()


def reported_memory_is_what_the_driver_lost():
    torch.cuda.empty_cache()
    reserved, device = torch.cuda.memory_reserved(), used()
    kept, differences = [], []
    for count, size in ((200, 10_000), (50, 3 * MIB), (10, 300 * MIB), (1, 5 * GIB)):
        kept += [block(size) for _ in range(count)]
        mine, theirs = torch.cuda.memory_reserved() - reserved, used() - device
        differences.append((theirs - mine) / MIB)
        assert abs(differences[-1]) <= 32, f"reserved {mine}, the device lost {theirs}"
    del kept
    torch.cuda.empty_cache()
    left = used() - device
    assert left <= 32 * MIB, f"{left / MIB:.0f} MiB did not come back"
    return differences


def a_full_card():
    kept = []
    text = ""
    for size in (8 * GIB, GIB, 64 * MIB):
        try:
            while True:
                kept.append(block(size))
        except torch.OutOfMemoryError as error:
            text = str(error)
    free, _ = torch.cuda.mem_get_info()
    assert free < 512 * MIB, f"out of memory with {free / MIB:.0f} MiB free"
    # Failing again changes nothing, and freed memory is available at once.
    expect_out_of_memory(GIB)
    reserved = torch.cuda.memory_reserved()
    del kept[:2]
    again = [block(8 * GIB), block(8 * GIB)]
    assert torch.cuda.memory_reserved() <= reserved
    expect_out_of_memory(GIB)
    del kept, again
    torch.cuda.empty_cache()
    still_works()
    return text


def holes_serve_a_large_request():
    """Half of a limited card is free in pieces, and one request asks for nearly all of that."""
    torch.cuda.empty_cache()
    limit = 4 * GIB
    torch.cuda.set_per_process_memory_fraction(limit / total)
    kept = [block(32 * MIB) for _ in range(limit // (32 * MIB) - 4)]
    del kept[::2]
    torch.cuda.synchronize()
    served = True
    try:
        large = block(int(1.5 * GIB))
        del large
    except torch.OutOfMemoryError:
        served = False
    del kept
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0)
    return served


def a_fraction_of_the_card():
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.05)
    kept = []
    try:
        while True:
            kept.append(block(256 * MIB))
    except torch.OutOfMemoryError:
        pass
    limit = 0.05 * total
    reserved = torch.cuda.memory_reserved()
    assert limit - 512 * MIB < reserved <= limit, (reserved, limit)
    del kept[::2]
    expect_out_of_memory(int(0.9 * limit))
    still_works()
    kept.append(block(256 * MIB))
    assert torch.cuda.memory_reserved() <= limit
    del kept
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


more_than_the_card_has()
driver_share = reported_memory_is_what_the_driver_lost()
a_fraction_of_the_card()
served = holes_serve_a_large_request()
text = a_full_card()
if allocator == "ferro_alloc":
    from ferro_alloc import _C

    _C.check_invariants(0)
print(json.dumps({"driver_share_mib": driver_share, "holes_served": served, "message": text}))
