"""The published design's numbers of an allocator, with pages and in PyTorch's layout."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.python.torch_programs import Result, checks_of, simulated

PROGRAM = "features_sizes_and_views.py"
EXPECTED: dict[str, Any] = {
    "a_block_has_the_rounded_size": [],
    "a_rounded_size_rounds_to_itself": [True, True, True, 512],
    "a_request_takes_its_allocation_size_from_the_driver": [],
    "segments_are_pytorchs": [2, 20, 10, 12],
    "pages_are_whole": [[0], [8, 8, 16]],
    "a_view_has_the_numbers_of_torch": [True, True, True],
    "a_peak_is_reset_to_the_current_value": [12, 4, True, 1],
    "cached_bytes_are_what_no_block_uses": [True, 12, True, 1],
    "requests_are_hits_or_late_hits_or_misses": [True, True, [1, 0, 0]],
    "views_are_of_one_device": [True, 8, True, "FerroError"],
}
ABSENT = {
    ("segments_are_pytorchs", "ferro"): "memory comes in pages, so there are no segments",
    ("a_block_has_the_rounded_size", "segments"): "native splits off no remainder of 1 MiB or less",
    ("a_view_has_the_numbers_of_torch", "segments"): "numbers of blocks exist only for pages",
    ("cached_bytes_are_what_no_block_uses", "segments"): "cached bytes exist only for pages",
    ("requests_are_hits_or_late_hits_or_misses", "segments"): "outcomes exist only for pages",
}


@cache
def outcomes(allocator: str) -> Result:
    return simulated(PROGRAM, allocator, memory="1GiB", count=2)


def test_every_check_is_expected() -> None:
    assert set(checks_of(PROGRAM)) == set(EXPECTED)


@pytest.mark.parametrize("allocator", ["ferro", "segments"])
@pytest.mark.parametrize("name", EXPECTED)
def test_design(name: str, allocator: str) -> None:
    if (name, allocator) in ABSENT:
        pytest.skip(ABSENT[name, allocator])
    found = outcomes(allocator)[name]
    assert "error" not in found, found["error"]
    assert found["value"] == EXPECTED[name]
