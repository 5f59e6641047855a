"""Tensors on several devices that access each other's memory."""

import ctypes
from typing import Any

from tests.python.feature_checks import FERRO, KIB, MIB, check, error_of, finish

import torch

COUNT = torch.cuda.device_count()
PAIRS = [(a, b) for a in range(COUNT) for b in range(COUNT) if a != b]
RELAXED = 2
_driver = ctypes.CDLL("libcuda.so.1")


def words(tag: int, size: int) -> torch.Tensor:
    return torch.arange(tag, tag + size // 4, dtype=torch.int32)


def filled(size: int, tag: int, device: int) -> torch.Tensor:
    return words(tag, size).pin_memory().to(f"cuda:{device}", non_blocking=True)


def is_filled(tensor: torch.Tensor, tag: int) -> bool:
    return bool(torch.equal(tensor.cpu(), words(tag, 4 * tensor.numel())))


def direct_copy(to: torch.Tensor, source: torch.Tensor) -> int:
    """A copy by the device of `to`, which must have access to the other's memory."""
    with torch.cuda.device(to.device):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        result = _driver.cuMemcpyDtoDAsync_v2(
            ctypes.c_uint64(to.data_ptr()),
            ctypes.c_uint64(source.data_ptr()),
            ctypes.c_size_t(4 * source.numel()),
            stream,
        )
        torch.cuda.synchronize()
    return int(result)


@check
def peers_have_no_access_at_first() -> Any:
    if COUNT < 2:
        return True
    source, to = filled(64 * KIB, 3, 0), filled(64 * KIB, 0, 1)
    refused = direct_copy(to, source) == 1
    # Memory of cudaMalloc is copied through its owner; mapped pages are not.
    return refused == FERRO


@check
def every_device_copies_to_every_other() -> Any:
    before = {a: filled(3 * MIB, a, a) for a in range(COUNT)}
    return [is_filled(before[a].to(f"cuda:{b}"), a) for a, b in PAIRS]


@check
def there_and_back() -> Any:
    tensor = filled(5 * MIB, 40, 0)
    for device in [*range(1, COUNT), 0]:
        tensor = tensor.to(f"cuda:{device}", non_blocking=True)
    return [str(tensor.device), is_filled(tensor, 40)]


@check
def copies_into_a_part() -> Any:
    seen = []
    for a, b in PAIRS:
        source, to = filled(4 * MIB, 1, a), filled(4 * MIB, 500_000, b)
        to[1000:2000].copy_(source[3000:4000])
        host = to.cpu()
        inner = torch.equal(host[1000:2000], torch.arange(3001, 4001, dtype=torch.int32))
        seen.append([inner, int(host[999]), int(host[2000])])
    return seen


@check
def peers_access_new_memory_directly() -> Any:
    """This follows the first copies, which enabled peer access."""
    seen = []
    for a, b in PAIRS:
        source, to = filled(30 * MIB, 7, a), filled(30 * MIB, 0, b)
        torch.cuda.synchronize(a)
        seen.append([direct_copy(to, source), is_filled(to, 7)])
    return seen


@check
def peers_access_reused_memory() -> Any:
    torch.cuda.empty_cache()
    source, to = filled(10 * MIB, 8, COUNT - 1), filled(10 * MIB, 0, 0)
    torch.cuda.synchronize(COUNT - 1)
    return [direct_copy(to, source), is_filled(to, 8)]


@check
def a_stream_of_one_device_waits_for_another() -> Any:
    source = filled(8 * MIB, 90, 0)
    with torch.cuda.device(COUNT - 1):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream(0))
        with torch.cuda.stream(stream):
            copied = source.to(f"cuda:{COUNT - 1}", non_blocking=True)
        source.record_stream(torch.cuda.current_stream(0))
        stream.synchronize()
    return is_filled(copied, 90)


@check
def each_device_has_separate_statistics() -> Any:
    held = [filled(2 * MIB, 0, device) for device in range(COUNT)]
    with_one = [torch.cuda.memory_allocated(device) for device in range(COUNT)]
    moved = held[0].to(f"cuda:{COUNT - 1}")
    with_two = [torch.cuda.memory_allocated(device) for device in range(COUNT)]
    del moved
    return [after - before for before, after in zip(with_one, with_two, strict=True)]


@check
def an_unannounced_capture_of_a_peer_stays_valid() -> Any:
    """Requests on other devices query the streams of their memory before they record a point."""
    stream = torch.cuda.Stream(COUNT - 1)
    with torch.cuda.stream(stream):
        known = torch.empty(MIB, dtype=torch.uint8, device=f"cuda:{COUNT - 1}")
    handle, graph = ctypes.c_void_p(stream.cuda_stream), ctypes.c_void_p()
    results = [_driver.cuStreamBeginCapture_v2(handle, RELAXED)]
    held = [torch.empty(20 * MIB, device=f"cuda:{device}") for device in range(COUNT)]
    results += [
        _driver.cuStreamEndCapture(handle, ctypes.byref(graph)),
        _driver.cuGraphDestroy(graph),
    ]
    del known, held
    return results


@check
def an_unknown_device_is_refused() -> Any:
    return error_of(lambda: torch.empty(1, device=f"cuda:{COUNT}"))[0]


finish()
