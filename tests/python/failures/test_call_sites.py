"""An out-of-memory error names the lines of code that hold most, while a history is recorded."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from tests.programs import find_program
from tests.python.torch_programs import simulated

MIB = 1 << 20
MILLION = 1_000_000


@cache
def outcome(blocks: int = MILLION // 10) -> dict[str, Any]:
    return simulated("call_sites.py", str(blocks), memory="1GiB", backing=False)


def line_with(text: str, function: str) -> str:
    lines = find_program("call_sites.py").read_text().splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if text in line)
    return f"failures/call_sites.py:{number} {function}"


def test_the_largest_lines_are_named_with_their_bytes_and_blocks() -> None:
    sites = outcome()["history"]["sites"]
    weights = line_with("torch.empty(40", "make_weights")
    cache_line = line_with("torch.zeros(50", "fill_cache")
    # Before Python 3.12 a comprehension is a function of its own.
    assert sites[0][0].replace("<listcomp>", "make_weights") == weights
    assert sites[0][1:] == [120 * MIB, 3]
    assert sites[1] == [cache_line, 100 * MIB, 2]
    assert sites[2:] == [
        [f"code/made_up.py:{n} <module>", n << 9, 1] for n in range(20, 20 - 14, -1)
    ]


def test_the_message_has_few_lines_which_add_up() -> None:
    found = outcome()["history"]
    first, title, *lines = found["text"].splitlines()
    assert first.endswith("or more devices.")
    assert title == "Live memory by the line of code that asked for it:"
    assert len(lines) == 8
    assert lines[0].startswith("  120.00 MiB in 3 blocks: failures/call_sites.py:")
    assert lines[-2].endswith(": 16 other lines")
    assert lines[-1] == "  100.00 MiB in 1 block: unknown"
    sizes = [float(re.findall(r"[\d.]+", line)[0]) for line in lines]
    assert abs(sum(sizes) - found["live"] / MIB) < 0.1


def test_without_a_history_with_contexts_there_are_none() -> None:
    for name in ("no history", "no contexts", "after it"):
        found = outcome()[name]
        assert found["sites"] == []
        assert "\n" not in found["text"]


def test_stacks_beyond_a_number_count_as_unknown() -> None:
    found = outcome()["many stacks"]
    ((line, size, blocks),) = found["sites"]
    assert line == line_with('return [torch.empty(1, device="cuda")]', "in_many_ways")
    assert (size, blocks) == (512 << 16, 1 << 16)
    assert found["text"].endswith(f" in {1 << 16} blocks: unknown")
    assert found["of allocation"] < 1


@pytest.mark.parametrize("blocks", [MILLION // 10, pytest.param(MILLION, marks=pytest.mark.long)])
def test_an_error_takes_less_time_than_its_blocks_took(blocks: int) -> None:
    found = outcome(blocks)["many blocks"]
    assert [site[1:] for site in found["sites"]] == [[512 * blocks, blocks]]
    assert found["of allocation"] < 1
