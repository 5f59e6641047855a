"""CUDA_VISIBLE_DEVICES chooses the simulated cards of a process, and torch counts the same."""

from __future__ import annotations

import json

import pytest

from tests.conftest import RunSimulated

pytestmark = pytest.mark.no_extension

UUID = "GPU-66657272-6f2d-7369-6d75-6c61746564{:02x}"


@pytest.mark.parametrize(
    ("visible", "cards"),
    [
        ("0", [0]),
        ("2,0", [2, 0]),
        ("3,2,1,0", [3, 2, 1, 0]),
        ("", []),
        ("-1", []),
        ("1,-1,2", [1]),
        ("1,9,2", [1]),
        ("1,1", []),
        ("0,9,0", []),
        ("1st, 2", [1, 2]),
        (f"{UUID.format(3)},{UUID.format(0)}", [3, 0]),
        ("GPU-6665", []),
        (f"{UUID.format(2)},GPU-0", [2]),
        (f"{UUID.format(2)},{UUID.format(2)}", []),
        (f"2,{UUID.format(0)}", [2]),
    ],
)
def test_the_visible_cards(run_simulated: RunSimulated, visible: str, cards: list[int]) -> None:
    done = run_simulated("sim_visible.py", visible, memory="256MiB", count=4)
    assert json.loads(done.stdout) == cards


def test_a_beginning_of_a_uuid_that_one_card_has(run_simulated: RunSimulated) -> None:
    done = run_simulated("sim_visible.py", "GPU-6665", memory="256MiB", count=1)
    assert json.loads(done.stdout) == [0]


def test_processes_that_see_other_cards_share_their_memory(run_simulated: RunSimulated) -> None:
    done = run_simulated("sim_visible_processes.py", memory="1GiB", count=4)
    found = json.loads(done.stdout)
    left = 1024 - 204  # what the child has on its first device is on the parent's second one
    assert found["before"] == found["after"] == [1024 - 100, left]
    both, other = found["children"]
    assert both[0] == {"free": [left, 1024], "opened": 0, "device": 0}
    assert both[1] == [1024 - 100, left - 302]
    assert both[2] == [[], [204, 302], [100], []]
    # A card that the child does not see can't be opened.
    assert other[0] == {"free": [1024], "opened": 1, "device": -1}
    assert other[1] == [1024 - 100, left]
    assert other[2] == [[302], [204], [100], []]


def test_without_a_card_the_allocator_has_nothing_to_do(run_simulated: RunSimulated) -> None:
    text = (
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = ''\n"
        "import torch\nprint(torch.cuda.device_count(), torch.cuda.is_available())\n"
        "try:\n    torch.ones(1, device='cuda')\nexcept RuntimeError as error:\n"
        "    print(str(error).splitlines()[0])\n"
        "print(torch.ones(2).sum().item())\n"
    )
    lines = run_simulated(text, memory="256MiB").stdout.splitlines()
    assert (lines[0], lines[-1]) == ("0 False", "2.0")
    assert len(lines) == 3
