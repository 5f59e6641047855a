"""Programs that use cuFFT and cuSOLVER: their verdicts, and the memory that the libraries take."""

from __future__ import annotations

import pytest

from tests.python.sim.conftest import Simulate

MIB = 1 << 20

# The product is too large to be computed.
UNKNOWN = """\
import torch
x = torch.randn(1024, 1024, device="cuda", requires_grad=True)
square = x @ x.mT + 1024 * torch.eye(1024, device="cuda")
CALL
"""
CALLS = (
    "torch.linalg.cholesky(square).sum().backward()",
    "torch.linalg.eigh(square)[0].sum().backward()",
    "torch.linalg.svd(square, full_matrices=False)[1].sum().backward()",
    "torch.linalg.qr(square)[1].sum().backward()",
    "torch.linalg.solve(square, x).sum().backward()",
    "torch.linalg.slogdet(square)[1].backward()",
    "torch.linalg.lstsq(square, x)",
    "torch.linalg.eig(square)",
    "torch.fft.irfft2(torch.fft.rfft2(square)).sum().backward()",
)


@pytest.mark.parametrize("call", CALLS)
def test_decompositions_of_unknown_matrices_succeed(simulate: Simulate, call: str) -> None:
    done, result = simulate(UNKNOWN.replace("CALL", call))
    assert (done.returncode, result["verdict"]) == (0, "fits"), done.stderr
    assert (result["refused"], result["uncomputed"]) == ([], [])


CALL = "torch.linalg.cholesky(square)"
TRY = f"try: {CALL}\nexcept "


@pytest.mark.parametrize(
    "program",
    [
        f"{TRY}torch.linalg.LinAlgError: square = square.double()\nsquare.sum()",
        f"{TRY}(ValueError, RuntimeError): pass\nsquare.sum()",
        f"def factor(): return {CALL}\nfor _ in range(2):\n"
        "    try: factor(); break\n    except: square = square + 1",
        f"import contextlib\nwith contextlib.suppress(Exception): {CALL}\nsquare.sum()",
    ],
)
def test_a_program_that_goes_on_after_their_errors_fits_as_far_as_known(
    simulate: Simulate, program: str
) -> None:
    done, result = simulate(UNKNOWN.replace("CALL", program))
    assert (done.returncode, result["verdict"]) == (13, "fits as far as known"), done.stderr
    assert "it reached the handler at " in done.stderr


@pytest.mark.parametrize(
    "program",
    [
        f"{TRY}torch.cuda.OutOfMemoryError: torch.cuda.empty_cache()\nsquare.sum()",
        f"{TRY}RuntimeError: print('failed'); raise\nsquare.sum()",
        f"{TRY}Exception as error: print(error)",
        f"try: square.sum()\nexcept Exception: {CALL}\nelse: {CALL}\nfinally: {CALL}\nsquare.sum()",
        f"try:\n    def factor(): return {CALL}\nexcept Exception: pass\nfactor()",
    ],
)
def test_a_program_that_their_errors_would_end_fits(simulate: Simulate, program: str) -> None:
    done, result = simulate(UNKNOWN.replace("CALL", program))
    assert (done.returncode, result["verdict"]) == (0, "fits"), done.stderr


# It is known, and not positive definite.
INDEFINITE = """\
import torch
try:
    torch.linalg.cholesky(-torch.eye(8, device="cuda"))
except torch.linalg.LinAlgError:
    print("refused")
"""


def test_decompositions_of_known_matrices_fail_as_on_a_gpu(simulate: Simulate) -> None:
    done, result = simulate(INDEFINITE)
    assert (done.stdout, result["verdict"]) == ("refused\n", "fits"), done.stderr


@pytest.mark.parametrize(
    ("call", "mib"),
    [
        ("torch.linalg.cholesky(torch.eye(8, device='cuda'))", 96),
        ("torch.fft.fft(torch.zeros(8, device='cuda'))", 8),
        # Two tables of 200,000 complex numbers.
        ("torch.fft.fft(torch.zeros(100003, device='cuda'))", 12),
    ],
    ids=["cuSOLVER", "cuFFT", "tables"],
)
def test_the_libraries_take_memory_of_the_driver(simulate: Simulate, call: str, mib: int) -> None:
    _, result = simulate(f"import torch\n{call}\n")
    assert result["devices"][0]["outside_bytes"] == mib * MIB


@pytest.mark.parametrize(
    "call",
    ["torch.fft.rfft2(torch.zeros(0, 4, 4, device='cuda'))", "torch.fft.fft(half)"],
    ids=["no batch", "half"],
)
def test_cufft_refuses_what_it_refuses_on_a_gpu(simulate: Simulate, call: str) -> None:
    program = f"""\
import torch
half = torch.zeros(6, dtype=torch.half, device="cuda")
try:
    {call}
except RuntimeError as error:
    print("cuFFT" in str(error))
"""
    done, result = simulate(program)
    assert (done.stdout, result["verdict"], result["refused"]) == ("True\n", "fits", [])


# The numbers of the graph's edges follow from a product that is too large to be computed.
GRAPH = UNKNOWN.replace(
    "CALL",
    """\
nodes = torch.arange(100, device="cuda")
edges = torch.stack([nodes, nodes * 7 % 100])
graph = torch.sparse_coo_tensor(edges, square[0, :100], (100, 100)).coalesce()
found = CALL
print(found._nnz())""",
)


@pytest.mark.parametrize(
    ("call", "elements"),
    [
        ("torch.sparse.mm(graph, graph)", 100),
        ("graph.to_sparse_csr() @ graph.to_sparse_csr()", 100),
        ("graph.to_sparse_csr() + graph.t().to_sparse_csr()", 196),
        ("graph.to_sparse_csc() @ graph.to_sparse_csc()", 100),
        ("torch.sparse.mm(graph, graph + graph.t())", 196),
    ],
)
def test_sizes_of_sparse_results_follow_from_indices(
    simulate: Simulate, call: str, elements: int
) -> None:
    done, result = simulate(GRAPH.replace("CALL", call))
    assert (done.stdout, result["verdict"]) == (f"{elements}\n", "fits"), done.stderr
    assert (result["refused"], result["uncomputed"]) == ([], [])


# Blocks of PyTorch's allocator serve the call, so only the library lacks memory.
FULL = """\
import torch
x = torch.rand(64, 64, device="cuda")
idle = [torch.empty(32768, device="cuda") for _ in range(10)]
del idle
free = torch.cuda.mem_get_info()[0]
full = torch.empty((free >> 21 << 21) - (2 << 20), dtype=torch.uint8, device="cuda")
CALL
"""


@pytest.mark.parametrize("call", ["torch.fft.fft(x)", "torch.linalg.eigh(x)"])
def test_libraries_without_memory_do_not_fit(simulate: Simulate, call: str) -> None:
    done, result = simulate(FULL.replace("CALL", call))
    assert (done.returncode, result["verdict"], result["sure"]) == (12, "does not fit", True)
    assert result["refused"] == []
    assert "ALLOC_FAILED" in result["out_of_memory"]["error"]


def test_a_caught_failure_of_a_library_without_memory_does_not_fit(simulate: Simulate) -> None:
    call = "try:\n    torch.fft.fft(x)\nexcept RuntimeError:\n    pass"
    done, result = simulate(FULL.replace("CALL", call))
    assert (done.returncode, result["verdict"], result["sure"]) == (12, "does not fit", True)
    assert (result["went_on"], result["out_of_memory"]["count"]) == (True, 1)


# The first calls load the libraries, which PyTorch does only from one thread.
THREADS = """\
import threading
import torch
failures = []
def work():
    with torch.cuda.stream(torch.cuda.Stream()):
        for n in range(1, 400):
            a = torch.eye(n % 7 + 1, device="cuda") * n
            try:
                torch.linalg.svd(a)
                torch.linalg.eigh(a)
            except RuntimeError as error:
                failures.append(str(error))
torch.linalg.svd(torch.eye(3, device="cuda"))
threads = [threading.Thread(target=work) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(failures)
"""


def test_threads_decompose_at_the_same_time(simulate: Simulate) -> None:
    done, result = simulate(THREADS)
    assert (done.stdout, result["verdict"]) == ("[]\n", "fits"), done.stderr
