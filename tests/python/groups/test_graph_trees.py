"""Trees of torch.compile in exclusive groups on the simulated GPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.python.torch_programs import Result, checks_of, simulated

EXPECTED: dict[str, Any] = {
    "trees_that_exist_share_with_decode_graphs": [*[True] * 4, 0],
    "trees_that_are_recorded_in_a_group": [*[True] * 5, 0],
    "trees_whose_first_graph_borrowed": [*[True] * 4, 0],
    "trees_leave_and_join_again": [*[True] * 8, 0],
    "a_new_tree_is_another_pool": [*[True] * 4],
    "unknown_pools_are_refused": [["FerroError"], True, True],
}


@cache
def trees(mode: str) -> Result:
    return simulated("features_trees.py", "ferro", memory="1GiB", mode=mode, count=2)


def test_every_check_of_trees_is_expected() -> None:
    assert set(checks_of("features_trees.py")) == set(EXPECTED)


@pytest.mark.parametrize("mode", ["eager", "adversarial"])
@pytest.mark.parametrize("name", EXPECTED)
def test_trees_in_groups(name: str, mode: str) -> None:
    found = trees(mode)[name]
    assert "error" not in found, found["error"]
    assert found["value"] == EXPECTED[name]
