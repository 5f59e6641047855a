"""Calls of cuFFT, cuSPARSE, cuSOLVER and cuDNN's CTC through PyTorch, and what each requests.

A case is a text of three parts, separated by `|`: the inputs a, b and c, separated by `;`, the
call, and the inputs by which its result is differentiated, if any. `library_cases.json` has what
each family requested on an H200 with torch 2.11 and CUDA 13.0.
"""

from __future__ import annotations

import random
from typing import Any

import torch

Case = str
f32, f64, f16, bf16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
c64, c128 = torch.complex64, torch.complex128
DEVICE = "cuda"


def r(*size, dtype=f32):
    generator = torch.Generator().manual_seed(sum(size) + len(size))
    wide = dtype if dtype in (f64, c64, c128) else f32
    return torch.randn(*size, generator=generator, dtype=wide).to(dtype).to(DEVICE)


def spd(n, *batch, dtype=f32):
    x = r(*batch, n, n, dtype=dtype)
    return x @ x.mH / n + 2 * torch.eye(n, device=DEVICE, dtype=dtype)


def sym(n, *batch, dtype=f32):
    x = r(*batch, n, n, dtype=dtype)
    return x + x.mH


def good(n, *batch, dtype=f32):
    return r(*batch, n, n, dtype=dtype) / n**0.5 + 3 * torch.eye(n, device=DEVICE, dtype=dtype)


def coo(rows, columns, count, dtype=f32, coalesced=True, batch=0):
    draw = random.Random(rows * 31 + columns * 7 + count)
    space = rows * columns * max(batch, 1)
    places = draw.sample(range(space), count) if coalesced else draw.choices(range(space), k=count)
    if coalesced:
        places.sort()
    at = torch.tensor(places)
    if batch:
        ids = torch.stack([at // (rows * columns), at // columns % rows, at % columns])
        size = (batch, rows, columns)
    else:
        ids = torch.stack([at // columns, at % columns])
        size = (rows, columns)
    made = torch.sparse_coo_tensor(ids.to(DEVICE), r(count, dtype=dtype), size)
    return made._coalesced_(True) if coalesced else made


def csr(rows, columns, count, dtype=f32, index=torch.int64):
    draw = random.Random(rows * 31 + columns * 7 + count)
    at = torch.tensor(sorted(draw.sample(range(rows * columns), count)))
    row = torch.bincount(at // columns, minlength=rows)
    pointers = torch.cat([torch.zeros(1, dtype=torch.int64), row.cumsum(0)])
    return torch.sparse_csr_tensor(
        pointers.to(index).to(DEVICE),
        (at % columns).to(index).to(DEVICE),
        r(count, dtype=dtype),
        (rows, columns),
    )


def csc(*arguments, **options):
    return csr(*arguments, **options).to_sparse_csc()


def logp(*size):
    return r(*size).log_softmax(-1)


def labels(n, classes, device="cpu"):
    generator = torch.Generator().manual_seed(n)
    return torch.randint(1, classes, (n,), generator=generator, dtype=torch.int32).to(device)


def tri_csr(n, dtype=f32):
    pointers = torch.tensor([i * (i + 1) // 2 for i in range(n + 1)])
    at = torch.cat([torch.arange(i + 1) for i in range(n)])
    numbers = torch.where(
        at == torch.repeat_interleave(torch.arange(n), torch.arange(1, n + 1)), 2.0, 0.1
    )
    return torch.sparse_csr_tensor(
        pointers.to(DEVICE), at.to(DEVICE), numbers.to(dtype).to(DEVICE), (n, n)
    )


def hann(n, dtype=f32):
    return torch.hann_window(n, dtype=dtype).to(DEVICE)


def tensors(found: Any) -> list[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        return [found]
    return (
        [each for one in found for each in tensors(one)] if isinstance(found, (tuple, list)) else []
    )


def inputs_of(case: Case) -> dict[str, torch.Tensor]:
    made, _, by = case.split("|")
    inputs = dict(zip("abc", (eval(text) for text in made.split(";")), strict=False))
    for name in by.split(",") if by else ():
        inputs[name].requires_grad_()
    return inputs


def outcome(case: Case, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The results of the call, and the gradients."""
    _, call, by = case.split("|")
    found = tensors(eval(call, globals(), inputs))
    if not by:
        return found
    total: Any = 0
    for each in found:
        if each.requires_grad:
            each = each.to_dense() if each.layout != torch.strided else each
            total = total + (each.abs() if each.is_complex() else each).sum()
    total.backward()
    return found + [inputs[name].grad for name in by.split(",")]


def record(case: Case) -> dict[str, Any]:
    """The sizes of the call's requests in their order, and how many bytes it allocated at once."""
    memory: Any = torch.cuda.memory
    inputs = inputs_of(case)
    torch.cuda.synchronize()
    before = memory.memory_allocated()
    memory.reset_peak_memory_stats()
    memory._record_memory_history(context=None, max_entries=1_000_000)
    try:
        found = outcome(case, inputs)
        torch.cuda.synchronize()
    finally:
        trace = memory._snapshot()["device_traces"][0]
        memory._record_memory_history(enabled=None)
    sizes = [event["size"] for event in trace if event["action"] == "alloc"]
    del found
    return {"sizes": sizes, "peak": memory.max_memory_allocated() - before}


def warm_up() -> None:
    """Takes the workspaces of matrix products."""
    for size in ((8, 8), (4, 8, 8)):
        torch.ones(size, device=DEVICE) @ torch.ones(size, device=DEVICE)
