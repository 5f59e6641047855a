"""Memory by tag, in status, errors, histories, leaks and the result of `simulate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunSimulated
from tests.python.snapshots.pages import views_of

MIB = 1 << 20


def found(run_simulated: RunSimulated, allocator: str, page: Path) -> dict[str, Any]:
    done = run_simulated("tagged.py", allocator, str(page), gpu="h100", backing=False)
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "allocator", [pytest.param("native", marks=pytest.mark.long), "ferro_alloc"]
)
def test_a_history_has_the_innermost_tag_of_the_thread(
    allocator: str, run_simulated: RunSimulated, tmp_path: Path
) -> None:
    said = found(run_simulated, allocator, tmp_path / "memory.html")
    assert said["recorded"] == {
        "inner": "inner",
        "inner again": "inner",
        "more weights": "weights",
        "of a thread": "",
        "untagged": "",
        "decorated 1": "decorated",
        "decorated 0": "decorated",
        "again": "",
    } | (
        {"weights": "weights", "gradient": ""}
        if allocator == "native"
        else {"gradient": "backward"}
    )
    assert said["refused"] == [True] * 4
    tags = views_of(tmp_path / "memory.html")[0]["tags"]
    assert sorted(tags) == ["(no tag)", "backward", "decorated", "inner", "weights"]


def test_live_bytes_by_tag(run_simulated: RunSimulated, tmp_path: Path) -> None:
    said = found(run_simulated, "ferro_alloc", tmp_path / "memory.html")
    sizes = {"weights": 40, "inner": 8, "decorated": 4, "backward": 6}
    assert said["before"] == {name: mib * MIB for name, mib in sizes.items()}
    sizes["weights"] = 20
    assert said["after"] == {name: mib * MIB for name, mib in sizes.items()}
    error = said["out_of_memory"]
    assert error["tags"] == [
        ["weights", 20 * MIB, 1],
        ["inner", 8 * MIB, 2],
        ["backward", 6 * MIB, 2],
        ["decorated", 4 * MIB, 2],
    ]
    assert "\nLive memory by tag:\n  0.02 GiB in 1 block: weights\n" in error["text"]


def test_peaks_and_reserved_bytes(run_simulated: RunSimulated) -> None:
    done = run_simulated("tag_memory.py", gpu="h100", backing=False)
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "before the first": {},
        "fell": [[10, 16], [4, 4]],
        "reset": [[10, 10], [4, 4]],
        "rose": [10, 13],
        "freed": [0, 4],
        "forgotten": None,
        "unknown device": True,
    }


def test_tags_follow_backward_passes_and_carried_functions(run_simulated: RunSimulated) -> None:
    done = run_simulated("tag_followed.py", gpu="h100", backing=False)
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "call in a tag": {"call": 6, "within": 1},
        "forward code": {"first": 8, "second": 2, "within": 4},
        "gradient": {"layer": 4},
        "nothing left": {},
        "next pass": {"within": 1},
        "checkpoint": {"block": 6, "within": 1},
        "forward code of a thread": {"of a thread": 6, "within": 1},
        "call of a thread": {"call of a thread": 6, "within": 1},
        "carried": {"carried": 2},
        "after many": {"new": 6, "within": 1},
        "too old": {"within": 1},
        "recorded": [
            "",
            "block",
            "call",
            "call of a thread",
            "carried",
            "first",
            "forward",
            "layer",
            "new",
            "of a thread",
            "old",
            "second",
            "within",
        ],
    }


def test_tags_of_pools(run_simulated: RunSimulated) -> None:
    assert run_simulated("tag_pools.py").stdout.splitlines()[-1] == "right"


def test_limits(run_simulated: RunSimulated) -> None:
    done = run_simulated("tag_limits.py", gpu="h100", backing=False)
    assert done.stdout.splitlines()[-1] == "right"
