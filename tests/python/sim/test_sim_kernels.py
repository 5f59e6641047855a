"""Kernels from outside of PyTorch's operators: what they may have written is not surely known."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.programs import Completed
from tests.python.sim.conftest import Result, Simulate

# Each way ends with a function that launches a kernel which reads `x` and writes to `counts`.
COMPILED = """\
import torch
from torch.cuda import _utils
C = 'extern "C" __global__ void histogram'
BODY = "{ if (x[threadIdx.x] >= 0) atomicAdd(&counts[x[threadIdx.x]], 1); }"
def compiled(declaration, name):
    return torch.cuda._compile_kernel(declaration + BODY, name)
def start(kernel, *args):
    kernel(grid=(1, 1, 1), block=(8, 1, 1), args=list(args))
"""
NVRTC = f"""{COMPILED}
kernel = compiled(C + "(const int* x, int* counts)", "histogram")
def launch(x, counts):
    start(kernel, x, counts)
"""
PTX = f"""{COMPILED}
text = '''
.version 9.0
.target sm_90
.address_size 64
.visible .entry histogram(
    .param .u64 .ptr .global .align 4 histogram_param_0,  // "x"
    .param .align 8 .b8 histogram_param_1[16]
)
{{ ret; }}
'''
kernel = getattr(_utils._cuda_load_module(text), "histogram")
def launch(x, counts):
    import ctypes
    pair = (ctypes.c_uint64 * 2)(8, counts.data_ptr() + 4)
    arguments = (ctypes.c_void_p * 2)()
    address = ctypes.c_uint64(x.data_ptr())
    arguments[0], arguments[1] = ctypes.addressof(address), ctypes.addressof(pair)
    driver = _utils._get_gpu_runtime_library()
    assert 0 == driver.cuLaunchKernel(
        kernel.func, 1, 1, 1, 8, 1, 1, 0, None, arguments, None)
"""
BUFFER = f"""{COMPILED}
import ctypes
kernel = compiled(C + "(const int* x, int* counts)", "histogram")
def launch(x, counts):
    buffer = (ctypes.c_uint64 * 2)(x.data_ptr(), counts.data_ptr())
    size = ctypes.c_size_t(16)
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
    driver = _utils._get_gpu_runtime_library()
    assert 0 == driver.cuLaunchKernel(kernel.func, 1, 1, 1, 8, 1, 1, 0, None, None, extra)
"""
FILE = f"""{COMPILED}
import ctypes, tempfile
file = tempfile.NamedTemporaryFile(suffix=".cubin")
text, name = _utils._nvrtc_compile(C + "(const int* x, int* counts)" + BODY, "histogram")
file.write(text)
file.flush()
torch.zeros(1, device="cuda")
driver, module, function = _utils._get_gpu_runtime_library(), ctypes.c_void_p(), ctypes.c_void_p()
assert 0 == driver.cuModuleLoad(ctypes.byref(module), file.name.encode())
assert 0 == driver.cuModuleGetFunction(ctypes.byref(function), module, b"histogram")
kernel = _utils._CudaKernel(function, module)
def launch(x, counts):
    start(kernel, x, counts)
"""
# `counts` is known to the kernel only as an address in memory.
LIST = f"""{COMPILED}
kernel = compiled(C + "(const int* x, int** lists) {{ int* counts = lists[0];" + BODY + "}}//",
                  "histogram")
def launch(x, counts):
    start(kernel, x, torch.tensor([counts.data_ptr()], device="cuda"))
"""
GRAPH = f"""{NVRTC}
eager = launch
def launch(x, counts):
    graph = torch.cuda.CUDAGraph()
    before = counts.clone()
    with torch.cuda.graph(graph):
        eager(x, counts)
    counts.copy_(before)
    graph.replay()
"""
TRITON_LIST = f"""{COMPILED}
import triton, triton.language as tl
@triton.jit
def histogram(x, lists):
    counts = tl.load(lists).to(tl.pointer_type(tl.int32))
    tl.store(counts, tl.load(x))
def launch(x, counts):
    histogram[(1,)](x, torch.tensor([counts.data_ptr()], device="cuda"))
"""
TRITON_COMPILED = f"""{COMPILED}
import triton, triton.language as tl
@triton.jit
def histogram(x, counts):
    tl.store(counts, tl.load(x))
def launch(x, counts):
    compiled = histogram.warmup(x, counts, grid=(1,))
    compiled[(1, 1, 1)](x, counts)
"""
WAYS = {
    "nvrtc": NVRTC,
    "ptx": PTX,
    "buffer": BUFFER,
    "file": FILE,
    "list": LIST,
    "graph": GRAPH,
    "triton_list": TRITON_LIST,
    "triton_compiled": TRITON_COMPILED,
}
# The layout of the kernel's arguments is unknown.
OPAQUE = f"""{COMPILED}
kernel = getattr(_utils._cuda_load_module(".version 9.0"), "histogram")
def launch(x, counts):
    start(kernel, x, counts)
"""
TENSORS = """
x = torch.arange(8, dtype=torch.int32, device="cuda")
counts = torch.zeros(8, dtype=torch.int32, device="cuda")
other = torch.ones(8, dtype=torch.int32, device="cuda")
"""
LAUNCH = "launch(x, counts)\n"
KNOWN = """
host = torch.arange(3)
print(int(host.max()), int(host.cuda().sum()), (counts.fill_(5)).tolist()[0])
"""


def assert_qualified(run: tuple[Completed, Result]) -> None:
    done, result = run
    assert result["verdict"] == "fits as far as known", done.stderr
    assert [read["learned"] for read in result["uncomputed"]] == ["integer"]
    kernels = next(line for line in result["not_simulated"] if line.startswith("kernels"))
    assert re.search(r"histogram\w* \(train\.py:\d+\)", kernels)


@pytest.mark.parametrize("way", WAYS)
def test_what_such_a_kernel_may_have_written(simulate: Simulate, way: str) -> None:
    run = simulate(WAYS[way] + TENSORS + LAUNCH + "print(len(range(int(counts.max()))))")
    assert_qualified(run)
    assert run[0].stdout == "0\n"


@pytest.mark.parametrize("way", WAYS)
def test_what_it_does_not_reach_stays_known(simulate: Simulate, way: str) -> None:
    done, result = simulate(WAYS[way] + TENSORS + LAUNCH + "print(int(other.max()))" + KNOWN)
    assert (result["verdict"], result["uncomputed"]) == ("fits", []), done.stderr
    assert done.stdout == "1\n2 3 5\n"


def test_an_unknown_layout(simulate: Simulate) -> None:
    run = simulate(OPAQUE + TENSORS + LAUNCH + "print([len(range(n)) for n in other.tolist()])")
    assert_qualified(run)
    assert run[0].stdout == f"{[1] * 8}\n"
    done, result = simulate(OPAQUE + TENSORS + LAUNCH + KNOWN)
    assert (result["verdict"], done.stdout) == ("fits", "2 3 5\n"), done.stderr


def test_an_unknown_layout_in_a_graph(simulate: Simulate) -> None:
    program = GRAPH.replace(NVRTC, OPAQUE) + TENSORS + LAUNCH
    assert_qualified(simulate(program + "print(len(range(int(other.max()))))"))


CONSTANTS = f"""{COMPILED}
kernel = compiled("__global__ void histogram(const int* x, int* counts)", "histogram")
def launch(x, counts):
    start(kernel, x, counts)
"""


def test_pointers_to_constants_are_not_written(simulate: Simulate) -> None:
    program = CONSTANTS + TENSORS + LAUNCH
    done, result = simulate(program + "print(int(x.max()))")
    assert (result["verdict"], done.stdout) == ("fits", "7\n"), done.stderr
    assert_qualified(simulate(program + "range(*counts.tolist()[:1])"))


# Blocks from before the first such kernel, after it, and in memory that was freed in between.
BLOCKS = f"""{BUFFER}{TENSORS}
from types import SimpleNamespace
launch(x, counts)
print(other.tolist())
for size in (8, 1 << 20, 8 << 20):
    before = torch.zeros(size, dtype=torch.int32, device="cuda")
    del before
    counts = torch.zeros(size, dtype=torch.int32, device="cuda")
    after = torch.ones(8, dtype=torch.int32, device="cuda")
    launch(x, counts[4:])
    print(after.tolist())
    assert counts[:4].tolist() == [0] * 4
    # The end of a block, as of iterators; what lies there is no other block.
    launch(x, SimpleNamespace(data_ptr=lambda: counts.data_ptr() + counts.nbytes))
torch.cuda.empty_cache()
print(after.tolist())
"""


@pytest.mark.parametrize("allocator", ["native", "expandable", "ferro_alloc"])
def test_blocks_of_allocators(simulate: Simulate, allocator: str) -> None:
    done, result = simulate(BLOCKS, "--allocator", allocator)
    assert [read["count"] for read in result["uncomputed"]] == [3], done.stderr
    assert done.stdout == f"{[1] * 8}\n" * 5


TRAINING = f"""{NVRTC}{TENSORS}
model = torch.nn.Linear(16, 1).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    batch = torch.randn(8, 16, device="cuda")
    launch(x, batch)
    loss = model(batch).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{{loss.item():.3f}}", int(other.sum()))
"""


def test_a_training_loop_that_prints_its_loss(simulate: Simulate) -> None:
    done, result = simulate(TRAINING)
    assert result["verdict"] == "fits", done.stderr
    assert [read["learned"] for read in result["uncomputed"]] == ["float"]


# The schema does not say that the operator writes.
OPERATOR = f"""{NVRTC}{TENSORS}
library = torch.library.Library("mine", "DEF")
library.define("count(Tensor x, Tensor? unused, Tensor counts) -> ()")
library.impl("count", lambda x, unused, counts: launch(x, counts), "CUDA")
torch.ops.mine.count(x, None, counts)
print(int(other.max()))
"""


def test_an_operator_that_only_writes(simulate: Simulate) -> None:
    done, result = simulate(OPERATOR)
    assert (result["verdict"], result["uncomputed"]) == ("fits", []), done.stderr
    _, result = simulate(OPERATOR + "print(len(range(int(counts.max()))))")
    assert result["verdict"] == "fits as far as known"


# An extension reads what its kernel wrote, and memory that the kernel does not reach.
COPIED = f"""{NVRTC}{TENSORS}
import ctypes
driver = _utils._get_gpu_runtime_library()
def read(tensor):
    number = ctypes.c_int()
    assert 0 == driver.cuMemcpyDtoH_v2(
        ctypes.byref(number), ctypes.c_uint64(tensor.data_ptr()), ctypes.c_size_t(4))
    return number.value
launch(x, counts)
print(read(other))
"""


def test_copies_to_the_host_outside_of_operators(simulate: Simulate) -> None:
    done, result = simulate(COPIED)
    assert (result["verdict"], result["uncomputed"], done.stdout) == ("fits", [], "1\n")
    run = simulate(COPIED + "print(read(counts))")
    assert_qualified(run)
    assert run[1]["uncomputed"][0]["operator"] == "cudaMemcpy"


EXTENSION = """\
__device__ int found;
__global__ void histogram(const int* x, int* counts) {
  atomicAdd(&counts[x[threadIdx.x]], 1);
  found = 1;
}
extern "C" void launch(const int* x, int* counts) { histogram<<<1, 8>>>(x, counts); }
extern "C" int read_found() {
  int here;
  cudaMemcpyFromSymbol(&here, found, sizeof here);
  return here;
}
extern "C" void set_found(int here) { cudaMemcpyToSymbol(found, &here, sizeof here); }
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("code", ["arch=compute_90,code=sm_90", "arch=compute_80,code=compute_80"])
def test_an_extension(simulate: Simulate, tmp_path: Path, code: str) -> None:
    source, library = tmp_path / "kernel.cu", tmp_path / "kernel.so"
    source.write_text(EXTENSION)
    options = ["-shared", "-cudart", "shared", "-Xcompiler", "-fPIC", "-gencode", code]
    subprocess.run(["nvcc", *options, "-o", library, source], check=True)
    program = f"""\
import ctypes, torch
library = ctypes.CDLL("{library}")
def launch(x, counts):
    library.launch(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(counts.data_ptr()))
{TENSORS}{LAUNCH}library.set_found(3)
print(int(x.max()), int(other.max()), library.read_found())
"""
    done, result = simulate(program)
    assert (result["verdict"], done.stdout) == ("fits", "7 1 3\n"), done.stderr
    assert_qualified(simulate(f"{program}print(len(range(int(counts.max()))))"))
    assert_qualified(simulate(f"{program}launch(x, counts); library.read_found()"))
