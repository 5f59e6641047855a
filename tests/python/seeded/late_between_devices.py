"""Work of one device reads freed memory of another device, whose stream waits for the read late.

    late_between_devices.py ALLOCATOR copies|kernels|peer_copies right|left_out

Memory of device 0 is freed while its stream is idle and a stream of device 1 has yet to read it, by
peer access or with a copy of the runtime that needs none. Another stream of device 0 requests more
memory. Then the stream of the freed memory waits for device 1 before its own next request. With
`left_out` it does not wait. Prints how many results were wrong. Kernels compute nothing on the
simulated GPU, so copies of device 1 read there.
"""

import ctypes
import json
import sys

import torch

import ferro_alloc

ROUNDS = 40
WORDS = 1 << 20
LARGER = 3 << 19
SLEEP = 5_000_000
"""GPU cycles: some milliseconds."""
SOURCE = """
extern "C" __global__ void copy(const int* source, int* target) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  target[i] = source[i];
}
"""

allocator, work, waits = sys.argv[1:]
if allocator != "native":
    ferro_alloc.install(ferro_alloc.Config(layout=allocator))
driver = ctypes.CDLL("libcuda.so.1")

runtime = ctypes.CDLL(None if hasattr(ctypes.CDLL(None), "cudaFree") else "libcudart.so.13")

if work != "peer_copies":
    # The first copy from device 1 gives it access to the memory of device 0.
    torch.empty(1, device="cuda:1").to("cuda:0")
main = torch.cuda.Stream(0)
bystander = torch.cuda.Stream(0)
reader = torch.cuda.Stream(1)
kernel = None
if work == "kernels":
    with torch.cuda.device(1):
        kernel = torch.cuda._compile_kernel(SOURCE, "copy")
patterns = torch.arange(ROUNDS + 2, dtype=torch.int32).repeat_interleave(WORDS)
patterns = patterns.view(ROUNDS + 2, WORDS).pin_memory()
noise = torch.full((LARGER,), 0x5A5A5A5A, dtype=torch.int32).pin_memory()


def empty(words: int) -> torch.Tensor:
    return torch.empty(words, dtype=torch.int32, device="cuda")


def read_on_device_1(source: torch.Tensor) -> torch.Tensor:
    with torch.cuda.stream(reader):
        target = empty(source.numel())
        torch.cuda._sleep(SLEEP)
        if kernel is not None:
            kernel(grid=(WORDS // 256, 1, 1), block=(256, 1, 1), args=[source, target])
        elif work == "peer_copies":
            result = runtime.cudaMemcpyPeerAsync(
                ctypes.c_void_p(target.data_ptr()),
                target.device.index,
                ctypes.c_void_p(source.data_ptr()),
                source.device.index,
                ctypes.c_size_t(4 * source.numel()),
                ctypes.c_void_p(reader.cuda_stream),
            )
            assert result == 0
        else:
            result = driver.cuMemcpyDtoDAsync_v2(
                ctypes.c_uint64(target.data_ptr()),
                ctypes.c_uint64(source.data_ptr()),
                ctypes.c_size_t(4 * source.numel()),
                ctypes.c_void_p(reader.cuda_stream),
            )
            assert result == 0
        return target


results, kept = [], []
for number in range(ROUNDS):
    with torch.cuda.stream(main):
        temporary = empty(WORDS)
        temporary.copy_(patterns[number], non_blocking=True)
    reader.wait_stream(main)
    result = read_on_device_1(temporary)
    main.synchronize()
    del temporary
    with torch.cuda.stream(bystander):
        kept.append(empty(LARGER))
        kept[-1].copy_(noise, non_blocking=True)
    # This wait is early enough: the memory's stream requests none before it.
    if waits == "right":
        main.wait_stream(reader)
    with torch.cuda.stream(main):
        reused = empty(WORDS)
        reused.copy_(patterns[number + 1], non_blocking=True)
    bystander.synchronize()
    main.synchronize()
    reader.synchronize()
    results.append(result.cpu())
    del reused, result

wrong = sum(not torch.equal(found, patterns[i]) for i, found in enumerate(results))
print(json.dumps({"rounds": len(results), "wrong": wrong}))
