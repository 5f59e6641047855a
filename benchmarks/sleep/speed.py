"""The speed of sleeping and waking memory, compared with plain copies of as many bytes.

    python -m benchmarks.sleep.speed [--gib 20] [--dropped-gib 40] [--turns 3] [--smoke]

Prints one line of JSON: GiB/s of a copy from and to page-locked memory, of the first sleep, which
also allocates the host memory, and of later ones; milliseconds to drop memory and to allocate it
again; and bytes on the device beyond those of a process that never allocated. Without a GPU it runs
on the simulated one, whose times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ferro_alloc
from benchmarks.harness.processes import OURS, use_allocator
from tools.gpu import gpu_count

if TYPE_CHECKING:
    import torch

GIB = 1 << 30
MIB = 1 << 20


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """The seconds of the work, and its result."""
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    torch.cuda.synchronize()
    return time.perf_counter() - start, result


def on_device() -> int:
    import torch

    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def transformer(gib: float) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model that takes `gib` with its optimizer state, 12 bytes for a parameter."""
    import torch

    width = 4096 if gib >= 4 else 512
    of_layer = 12 * width * width
    layers = max(1, round(gib * GIB / 12 / of_layer))
    with torch.device("cuda"):
        model = torch.nn.Sequential(
            *(
                torch.nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True, dropout=0)
                for _ in range(layers)
            )
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    loss = model(torch.randn(1, 16, width, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return model, optimizer


def sums(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[int]:
    import torch

    tensors = list(model.parameters())
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if value.is_cuda]
    return [int(tensor.detach().view(torch.int32).sum()) for tensor in tensors]


def copies(gib: float, unit: int) -> tuple[float, float]:
    """GiB/s from the device and to it, by copies of `unit` bytes."""
    import torch

    device = torch.empty(unit, dtype=torch.uint8, device="cuda")
    host = torch.empty(unit, dtype=torch.uint8, pin_memory=True)
    rounds = max(1, round(gib))

    def repeat(to: torch.Tensor, source: torch.Tensor) -> float:
        def copy() -> None:
            for _ in range(rounds):
                to.copy_(source, non_blocking=True)

        copy()
        return rounds * unit / GIB / timed(copy)[0]

    return repeat(host, device), repeat(device, host)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--gib", type=float, default=20)
    parser.add_argument("--dropped-gib", type=int, default=40)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="little memory: does it run?")
    parser.add_argument("--output", type=Path, help="where the line goes too")
    given = parser.parse_args()
    if given.smoke:
        given.gib, given.dropped_gib, given.turns = 0.1, 1, 1
    use_allocator(OURS, simulated=gpu_count() == 0)
    import torch

    sums(*transformer(0.1))  # loads the kernels
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    alone = on_device()
    result: dict[str, Any] = {"device": torch.cuda.get_device_name()}
    out, back = copies(given.gib, GIB // 64 if given.smoke else GIB)
    torch.cuda.empty_cache()
    result["copy"] = [round(out, 1), round(back, 1)]
    model, optimizer = transformer(given.gib)
    torch.cuda.synchronize()
    before = sums(model, optimizer)
    torch.cuda.empty_cache()
    live = torch.cuda.memory_allocated()
    result["gib"] = round(live / GIB, 2)
    result["sleep"], result["wake"] = [], []
    for turn in range(1 + given.turns):
        took, slept = timed(ferro_alloc.sleep)
        if turn == 0:
            asleep = ferro_alloc.asleep()
            result["asleep"] = {
                "left_mib": round((on_device() - alone) / MIB),
                "reserved_mib": round(torch.cuda.memory_reserved() / MIB),
                "staying": dict(slept.staying),
                "host_mib": round(asleep.host_bytes / MIB),
                "locked_mib": round(asleep.page_locked_bytes / MIB),
            }
        result["sleep"].append(round(slept.content_bytes / GIB / took, 1))
        took, _ = timed(ferro_alloc.wake)
        result["wake"].append(round(slept.content_bytes / GIB / took, 1))
    result["bytes are the same"] = sums(model, optimizer) == before
    del model, optimizer
    torch.cuda.empty_cache()
    cache = [torch.empty(GIB, dtype=torch.uint8, device="cuda") for _ in range(given.dropped_gib)]
    result["drop_ms"], result["take_ms"] = [], []
    for _ in range(given.turns):
        took, _ = timed(lambda: ferro_alloc.sleep(keep="nothing"))
        result["drop_ms"].append(round(took * 1e3, 1))
        took, _ = timed(ferro_alloc.wake)
        result["take_ms"].append(round(took * 1e3, 1))
    result["driver_calls"] = dict(ferro_alloc.status().devices[0].driver_calls)
    del cache
    print(json.dumps(result))
    if given.output is not None:
        given.output.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
