"""Memory that sleeps keeps its addresses, and its contents if the program keeps them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.python.torch_programs import simulated

WANTED: dict[str, Any] = {
    "contents_come_back": [0, True, True, True, True],
    "contents_are_dropped": True,
    "tags_sleep_alone": [[96, True, True], [160, True], 96],
    "memory_is_freed_while_it_sleeps": [51, True],
    "new_memory_beside_memory_that_sleeps": [True, True],
    "views_modules_and_optimizers": True,
    "graphs_stay_valid": [
        [True, True],
        [True, True],
        [["FerroError", " the memory of this graph is asleep"]] * 2,
        False,
    ],
    "the_debug_mode_names_inputs_that_sleep": [True, True],
    "a_graph_is_deleted_while_it_sleeps": [True, 4],
    "exclusive_groups_sleep": [16, [{}, {}], [True] * 3, [True] * 3, True],
    "scratch_wakes_with_a_tag_whose_memory_was_freed": 0,
    "scratch_sleeps_with_the_last_of_its_tags": [[4, 12, 4, 4], [True, True]],
    "captures_while_everything_sleeps": [[True] * 3, 4, False],
    "what_pytorch_computes_with_wakes_with_any_tag": [True] * 4,
    "refused_captures_leave_the_random_generator": [
        ["asleep", "asleep", "sealed", "sealed"],
        [4] * 4,
    ],
    # Private, live, scratch and asleep MiB, of a MemPool and of a graph's pool.
    "sizes_of_pools_that_sleep": [
        [[30, 30, 0, 0], [8, 4, 4, 0]],
        [[20, 20, 0, 10], [0, 0, 0, 8]],
        [[0, 0, 0, 30], [0, 0, 0, 8]],
        *[True] * 4,
    ],
    "graphs_that_are_deleted_while_they_sleep_leave_nothing": [0] * 6,
    "pinning_memory_that_sleeps_is_refused": [True, True],
    "pools_of_programs": [0, True, True, 30],
    "what_cannot_sleep_is_named": [{"pinned": 20}, True, True, True],
    "other_memory_on_the_same_pages": [0, ["beside"], True, True],
    "too_little_memory_to_wake": [True, 60, True, True],
    "a_failed_wake_names_the_holders": [
        ["LIMIT", 300, 512, [["new", 350, 1]], 300, 300, True, True, True],
        ["LIMIT", 300, True],
        [0, False, ["old"], True],
    ],
    "unknown_tags": [0, [True, True], True, True],
    "captures_refuse": [[True, True], True],
    "wrong_arguments": [True] * 5,
    "sharing_a_sleeping_tensor": [True, True],
    "streams_and_threads": [True, True],
    "many_sleeps_leave_nothing": [True, 0, True],
    "pools_that_are_deleted_while_they_sleep_leave_no_host_memory": True,
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return simulated("sleeping.py", memory="1GiB", values=True)


def test_two_devices() -> None:
    found = simulated("sleeping_devices.py", memory="1020MiB", count=2, values=True)
    assert found["seen"] == [
        [20, 30],
        [[0, 0], 50, 50],
        [[0, 30], True],
        [[0, 0], 20],
        *[[True, True]] * 4,
        [60, 40],  # scratch too
        *[[True, True]] * 2,
    ]


def test_cudagraph_trees() -> None:
    assert simulated("sleeping_trees.py", memory="512MiB", values=True) == {
        "on the device": True,
        "refused": True,
        "results None": [True] * 4,
        "results tree": [True] * 4,
        "replayed": [True] * 4,
        "captures": 0,
    }


def test_native_memory_in_use_does_not_sleep() -> None:
    assert simulated("sleep_beside_native.py", memory="1GiB", values=True) == {
        "refused": True,
        "asleep": 0,
        "staying": ["native"],
        "bytes": 4 << 20,
        "kept": True,
    }


def test_free_memory_returns() -> None:
    assert simulated("free_memory.py", memory="512MiB", conf="idle_mb:64", values=True) == {
        "default pool": 0,
        "held pool, by tag": True,
        "held pool": 0,
        "pool that is gone, by tag": 160,
        "region": 160,
        "good": True,
    }


@pytest.mark.parametrize("order", ["", "adversarial"])
def test_random_programs(order: str) -> None:
    settings = {"mode": order} if order else {}
    found = simulated("sleep_seeded.py", "1", "6", "120", memory="2GiB", values=True, **settings)
    assert found["sleeps"] > 30
    assert found["wakes"] > 40
    assert found["compared"] > 300


@pytest.mark.parametrize("case", WANTED)
def test_sleeping_memory(found: dict[str, Any], case: str) -> None:
    assert found[case] == WANTED[case]
