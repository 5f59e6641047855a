"""Shared by the feature programs: the set-up, and `@check`, which records each outcome.

The program's argument is the allocator: "native", "ferro", or "segments" for the classic layout of
ferro_alloc. It prints one JSON object with the result of each check, or its error. Tests compare
the values that do not depend on the allocator.
"""

import gc
import itertools
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

import ferro_alloc

ALLOCATOR = sys.argv[1] if len(sys.argv) > 1 else "native"
FERRO = ALLOCATOR in ("ferro", "segments")
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

if ALLOCATOR == "segments":
    ferro_alloc.install(ferro_alloc.Config(layout="segments"))
elif FERRO:
    ferro_alloc.install()

torch.set_num_threads(1)
_results: dict[str, Any] = {}


def check_invariants() -> None:
    if FERRO:
        from ferro_alloc import _C

        torch.empty(1, device="cuda")
        _C.check_invariants(0)


def check(function: Callable[[], Any]) -> Callable[[], Any]:
    """Runs the function at once, on an emptied cache, and the allocator's self-check after it."""
    only = os.environ.get("FERRO_ONLY_CHECK")
    if only and function.__name__ != only:
        return function
    try:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        value = function()
        torch.cuda.synchronize()
        check_invariants()
        _results[function.__name__] = {"value": value}
    except Exception:
        _results[function.__name__] = {"error": traceback.format_exc()}
    return function


def since(minor: int) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """`@check` for what torch 2.`minor` introduced."""
    if int(torch.__version__.split(".")[1]) >= minor:
        return check

    def note_absence(function: Callable[[], Any]) -> Callable[[], Any]:
        _results[function.__name__] = {"absent": f"torch 2.{minor} introduced it"}
        return function

    return note_absence


def finish() -> None:
    print(json.dumps(_results))


def statistic(name: str, column: str = "current") -> int:
    return int(torch.cuda.memory_stats()[f"{name}.all.{column}"])


def copied_through(source: torch.Tensor, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """A copy of `source`, which has words, by way of each part in turn. It has bytes."""
    parts[0].view(torch.int32).copy_(source)
    for before, after in itertools.pairwise(parts):
        after.copy_(before)
    return parts[-1].clone()


def take(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def filled(size: int, tag: int) -> torch.Tensor:
    """A tensor whose words are `tag`, `tag + 1`, ..."""
    host = torch.arange(tag, tag + size // 4, dtype=torch.int32)
    return host.pin_memory().to("cuda", non_blocking=True)


def words(tag: int, size: int) -> torch.Tensor:
    return torch.arange(tag, tag + size // 4, dtype=torch.int32)


def churn_under_pressure(rounds: int) -> None:
    """Blocks of sizes that change from round to round; half of them stay for the next.

    With ferro_alloc's pages, under a limit 8 MiB beyond what is live at a time, so that they move.
    """
    gc.collect()
    torch.cuda.empty_cache()
    before = 0
    if ALLOCATOR == "ferro":
        before = ferro_alloc.status().devices[0].pages_moved
        limit = torch.cuda.memory_reserved() + 72 * MIB
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.mem_get_info()[1])
    kept: list[torch.Tensor] = []
    for i in range(rounds):
        size = (5, 11, 3, 7)[i % 4] * MIB
        room = 64 * MIB - sum(tensor.nbytes for tensor in kept)
        fresh = [filled(size, i) for _ in range(room // size)]
        assert all(torch.equal(tensor.cpu(), words(i, size)) for tensor in fresh)
        kept = fresh[::2]
        del fresh
    torch.cuda.set_per_process_memory_fraction(1.0)
    if ALLOCATOR == "ferro":
        assert ferro_alloc.status().devices[0].pages_moved > before + rounds


def error_of(function: Callable[[], Any]) -> tuple[str, str]:
    """Type and text of what the function raises; two empty strings when it returns."""
    try:
        function()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""
