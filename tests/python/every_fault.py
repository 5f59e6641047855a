"""Shared by programs that refuse each driver call once."""

import gc
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ferro_alloc import sim
from tests.python.feature_checks import check_invariants

SUFFIXES = ("", "_v2", "_v3")


def held() -> tuple[int, int, int]:
    """The held memory after releasing everything that can be released."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    check_invariants()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved(), torch.cuda.memory_allocated()


def refuse_each(
    functions: Sequence[str],
    run: Callable[[str, int], int],
    undisturbed: Callable[[], None],
    held: Callable[[], Any],
    is_tried: Callable[[int], bool] = lambda number: True,
) -> dict[str, list[int]]:
    """Returns for each function the number of refused calls, and the number of those that failed.

    `undisturbed` runs once, to count the calls of each function. `run(function, number)` refuses
    the call with this number, for numbers that `is_tried`, and returns whether that failed. `held`
    must be the same after each.
    """
    held_at_start = held()
    sim.reset_counters()
    undisturbed()
    counters = sim.counters()
    assert held() == held_at_start, (held(), held_at_start)
    found = {}
    for function in functions:
        symbols = [function + suffix for suffix in SUFFIXES if function + suffix in counters]
        calls = sum(counters[symbol].calls for symbol in symbols)
        numbers = [number for number in range(1, calls + 1) if is_tried(number)]
        failures = 0
        for number in numbers:
            try:
                failures += run(function, number)
                assert held() == held_at_start, (held(), held_at_start)
            except BaseException:
                print("at", function, number, file=sys.stderr)
                raise
        found[function] = [len(numbers), failures]
    return found
