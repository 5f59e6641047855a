"""The names of the published design, under ferro_alloc's layouts and before any install."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.python.torch_programs import Result, checks_of, simulated

EXPECTED: dict[str, Any] = {
    "a_capture_begins_and_ends_by_its_stream": [True, True, "NONE", True, True],
    "a_guard_takes_a_stream_first": [
        [True, False, True],
        *([[True, True, True]] * 3),
        [False, True, True],
    ],
    "the_order_of_arguments_so_far_still_works": [
        [False, True],
        [True, True],
        [True, True],
        [True, False],
    ],
    "a_stream_is_no_handle": [[], True, True],
    "an_attached_pool_lives_with_the_graph_alone": [True, True, 16, True],
    "a_pool_is_attached_at_the_end": [[True, True, 1, True, True, 16, True]] * 4,
    "only_the_pool_of_the_capture_is_attached": ["FerroError", True, "ACTIVE", True, "FerroError"],
    "a_graph_without_a_pool_has_none": [[False, None, 0, None, "None>"]] * 3,
    "a_pool_has_a_constructor": [3, True, "FerroError", True, True],
    "the_handle_of_no_pool_is_no_pool": [
        [[None, True], [None, True], None],
        None,
        "FerroError",
        True,
    ],
    "a_handle_is_made_of_its_number": [True, "decode", [True] * 4, True],
    "a_launch_is_on_the_stream_of_its_capture": [8, True, 8],
    "a_launch_on_another_stream_leaves_the_stream_of_the_capture": [True, "FerroError"],
    "a_scalar_is_bound_to_a_stream": [[True, True, True], True],
    "a_graph_of_no_stream_reads_a_bound_scalar": [True, None],
    "a_scalar_is_updated_on_another_stream": [5, "FerroError"],
    "an_update_of_a_bound_scalar_in_a_capture_belongs_to_the_graph": [[1.0, 2.5]] * 2,
    "a_launch_that_pytorch_refuses_in_a_capture_leaves_the_capture_whole": [
        *("RuntimeError", True, 0, False),
    ],
    "a_scalar_takes_its_arguments_in_either_order": [
        [[5, True], [5, True], [5, False], [5, False], [5, False], [5, True]],
        [True, True, True],
    ],
    "a_callable_in_the_order_of_the_design_is_a_clear_error": [
        "FerroError",
        [True, True, True],
        True,
    ],
    "a_callable_of_another_device_is_a_clear_error": ["FerroError", True, 1, 1],
    "a_callable_warms_up_three_times": 4,
}


@cache
def outcomes(allocator: str, mode: str) -> Result:
    return simulated("features_design.py", allocator, memory="1GiB", mode=mode, count=2)


def test_every_check_is_expected() -> None:
    assert set(checks_of("features_design.py")) == set(EXPECTED)


@pytest.mark.parametrize(
    ("allocator", "mode"),
    [
        ("ferro", "eager"),
        ("ferro", "adversarial"),
        ("segments", "adversarial"),
        ("native", "adversarial"),
    ],
)
@pytest.mark.parametrize("name", EXPECTED)
def test_design(name: str, allocator: str, mode: str) -> None:
    found = outcomes(allocator, mode)[name]
    assert "error" not in found, found["error"]
    assert found["value"] == EXPECTED[name]
