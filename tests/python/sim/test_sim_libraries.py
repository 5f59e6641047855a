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
