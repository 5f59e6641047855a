"""A program that waits late for a stream that PyTorch never saw, while memory is short.

    late_beside_captures.py ALLOCATOR announced|silent copies|kernels

The stream reads memory of the main stream that is freed before the read. Another stream requests
more memory than the process may use in addition, and only then the main stream waits. With
`announced` a graph is captured meanwhile; with `silent` another library has captured a graph
earlier without PyTorch. Prints how many results were wrong, how many requests were served while
memory was short, and whether the graph is right.
"""

import ctypes
import json
import sys

import torch

import ferro_alloc

ROUNDS = 12
WORDS = 3 << 20
LARGER = 9 << 19
ROOM = 24 << 20
"""Bytes that the process may use beyond its results: less than the two tensors of a round."""
SLEEP = 5_000_000
"""GPU cycles: some milliseconds."""
NON_BLOCKING = 1
RELAXED = 2

allocator, capture, work = sys.argv[1:]
if allocator != "native":
    ferro_alloc.install(ferro_alloc.Config(layout=allocator))
torch.cuda.init()
runtime = ctypes.CDLL(None if hasattr(ctypes.CDLL(None), "cudaFree") else "libcudart.so.13")
kernels = work == "kernels"


def new_stream() -> ctypes.c_void_p:
    stream = ctypes.c_void_p()
    assert runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), NON_BLOCKING) == 0
    return stream


main = torch.cuda.Stream()
bystander = torch.cuda.Stream()
unknown = torch.cuda.ExternalStream(new_stream().value)
patterns = torch.arange(ROUNDS, dtype=torch.int32).repeat_interleave(WORDS)
patterns = patterns.view(ROUNDS, WORDS).pin_memory()
noise = torch.full((LARGER,), 0x5A5A5A5A, dtype=torch.int32).pin_memory()
results = [torch.empty(WORDS, dtype=torch.int32, device="cuda") for _ in range(ROUNDS)]


def empty(words: int) -> torch.Tensor:
    return torch.empty(words, dtype=torch.int32, device="cuda")


def write(tensor: torch.Tensor, value: int) -> None:
    if kernels:
        tensor.fill_(value if value >= 0 else 0x5A5A5A5A)
    else:
        source = patterns[value] if value >= 0 else noise
        tensor.copy_(source[: tensor.numel()], non_blocking=True)


def capture_silently() -> None:
    stream = new_stream()
    assert runtime.cudaStreamBeginCapture(stream, RELAXED) == 0
    with torch.cuda.stream(main):
        kept = [empty(WORDS) for _ in range(2)]
    del kept
    graph = ctypes.c_void_p()
    runtime.cudaStreamEndCapture(stream, ctypes.byref(graph))  # it may have been invalidated
    runtime.cudaGetLastError()


served = 0


def one_round(number: int) -> None:
    global served
    with torch.cuda.stream(main):
        temporary = empty(WORDS)
        write(temporary, number)
    unknown.wait_stream(main)
    with torch.cuda.stream(unknown):
        torch.cuda._sleep(SLEEP)
        results[number].copy_(temporary, non_blocking=True)
    main.synchronize()
    del temporary
    with torch.cuda.stream(bystander):
        try:
            other = empty(LARGER)
            write(other, -1)
            served += 1
        except torch.OutOfMemoryError:  # native fails too while a graph is captured
            pass
    bystander.synchronize()
    main.wait_stream(unknown)


total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + ROOM) / total)
graph_is_right = True
if capture == "silent":
    capture_silently()
    for number in range(ROUNDS):
        one_round(number)
else:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode="relaxed"):
        inside = torch.full((512,), 7, device="cuda")
        for number in range(ROUNDS):
            one_round(number)
    torch.cuda.synchronize()
    inside.zero_()
    graph.replay()
    graph_is_right = not kernels or bool((inside == 7).all())
torch.cuda.synchronize()
wrong = sum(not torch.equal(got.cpu(), patterns[number]) for number, got in enumerate(results))
print(json.dumps({"wrong": wrong, "served": served, "graph_is_right": graph_is_right}))
