"""Small programs that wait late for uses of freed memory, on both kinds of GPU."""

from __future__ import annotations

import json

import pytest

from tests.conftest import RunProgram, RunSimulated
from tests.programs import Completed
from tests.python.torch_programs import result_of, simulated
from tools.gpu import gpu_count

LAYOUTS = ("native", "pages", "segments")
LONG = pytest.mark.long
BRIEF = [pytest.param("native", marks=LONG), "pages", "segments"]
"""Under native the programs are known to be right."""
SEEDS = [0, pytest.param(1, marks=LONG), pytest.param(2, marks=LONG)]


def assert_right(done: Completed) -> None:
    assert json.loads(done.stdout.splitlines()[-1]) == {"rounds": 40, "wrong": 0}


@pytest.mark.parametrize("layout", BRIEF)
@pytest.mark.parametrize("seed", SEEDS)
def test_late_waits_with_copies(run_simulated: RunSimulated, layout: str, seed: int) -> None:
    words = ("late_wait_example.py", layout, "copies")
    turn = {"FERRO_SIM_TURN": "0.001"}
    assert_right(run_simulated(*words, env=turn, mode="adversarial", seed=seed))


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_late_waits_with_kernels(run_program: RunProgram, layout: str) -> None:
    assert_right(run_program("late_wait_example.py", layout, "kernels"))


@pytest.mark.parametrize("layout", BRIEF)
@pytest.mark.parametrize("work", ["copies", "peer_copies"])
@pytest.mark.parametrize("seed", SEEDS)
def test_late_waits_for_another_device(layout: str, work: str, seed: int) -> None:
    words = ("late_between_devices.py", layout, work, "right")
    result = simulated(*words, turn="0.001", count=2, mode="adversarial", seed=seed)
    assert result == {"rounds": 40, "wrong": 0}


@pytest.mark.parametrize("work", ["copies", "peer_copies"])
def test_a_missing_wait_for_another_device_is_detected(work: str) -> None:
    words = ("late_between_devices.py", "native", work, "left_out")
    assert simulated(*words, turn="0.001", count=2, mode="adversarial", seed=0)["wrong"] > 0


@pytest.mark.gpu
@pytest.mark.skipif(gpu_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("work", ["copies", "kernels", "peer_copies"])
def test_late_waits_for_another_device_on_gpus(
    run_program: RunProgram, layout: str, work: str
) -> None:
    assert_right(run_program("late_between_devices.py", layout, work, "right"))


IN_PLACE = ("eager", "captured")


@pytest.mark.parametrize("layout", BRIEF)
@pytest.mark.parametrize("kind", IN_PLACE)
@pytest.mark.parametrize("seed", [1, pytest.param(4, marks=LONG)])
def test_waits_for_uses_of_addresses(layout: str, kind: str, seed: int) -> None:
    words = ("late_in_place.py", layout, kind, str(seed))
    result = simulated(*words, turn="0.001", mode="adversarial", seed=seed)
    assert result["wrong"] == 0
    # With the other seed the captured program moves no page.
    assert layout != "pages" or seed != 1 or result["moved"] > 0


def test_missing_waits_for_uses_of_addresses_are_detected() -> None:
    words = ("late_in_place.py", "native", "left_out", "1")
    assert simulated(*words, turn="0.001", mode="adversarial", seed=1)["wrong"] > 0


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", IN_PLACE)
def test_waits_for_uses_of_addresses_on_a_gpu(
    run_program: RunProgram, layout: str, kind: str
) -> None:
    for seed in range(3):
        done = run_program("late_in_place.py", layout, kind, str(seed))
        assert result_of(done)["wrong"] == 0


@pytest.mark.parametrize("layout", BRIEF)
@pytest.mark.parametrize("when", ["before", "during"])
@pytest.mark.parametrize("seed", SEEDS)
def test_waits_between_the_graphs_of_a_pool(layout: str, when: str, seed: int) -> None:
    words = ("late_between_graphs.py", layout, when)
    assert simulated(*words, turn="0.001", mode="adversarial", seed=seed)["wrong"] == 0


CAPTURES = ("announced", "silent")


@pytest.mark.parametrize("layout", BRIEF)
@pytest.mark.parametrize("capture", CAPTURES)
def test_waits_of_unknown_streams_beside_captures(layout: str, capture: str) -> None:
    words = ("late_beside_captures.py", layout, capture, "copies")
    result = simulated(*words, turn="0.001", mode="adversarial", seed=1)
    assert result["wrong"] == 0
    assert result["graph_is_right"]
    assert layout != "pages" or result["served"] == 12


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("capture", CAPTURES)
def test_waits_of_unknown_streams_beside_captures_on_a_gpu(
    run_program: RunProgram, layout: str, capture: str
) -> None:
    result = result_of(run_program("late_beside_captures.py", layout, capture, "kernels"))
    assert result["wrong"] == 0
    assert result["graph_is_right"]
    assert layout != "pages" or result["served"] == 12


WITHOUT_RELEASES = "--without graphs mempools empty_cache"


@pytest.mark.parametrize("layout", ["pages", pytest.param("segments", marks=LONG)])
@pytest.mark.parametrize(
    "program",
    [
        "late_wait_example.py {} copies",
        "late_between_devices.py {} copies right",
        "late_between_devices.py {} peer_copies right",
        "late_in_place.py {} eager 1",
        "late_between_graphs.py {} before",
        "late_between_graphs.py {} during",
        f"seeded.py --allocator {{}} --seed 1000 {WITHOUT_RELEASES}",
    ],
)
def test_the_host_waits_no_more_often_than_under_native(layout: str, program: str) -> None:
    def waits(allocator: str) -> dict[str, int]:
        words = ("host_waits.py", *program.format(allocator).split())
        return simulated(*words, turn="0.001", count=2, mode="adversarial", seed=1)

    is_seeded = program.startswith("seeded.py")
    ours = waits("ferro" if is_seeded and layout == "pages" else layout)
    native = waits("native")
    assert sum(ours.values()) <= sum(native.values()), (ours, native)
