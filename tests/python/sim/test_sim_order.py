"""Order on the simulated GPU: correct programs deliver every byte, wrong ones are caught."""

from __future__ import annotations

import json

import pytest

from tests.conftest import RunSimulated

pytestmark = pytest.mark.no_extension

EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def wrong_rounds(run: RunSimulated, *words: str, env: dict[str, str], mode: str, seed: int) -> int:
    completed = run(*words, env=env, mode=mode, seed=seed)
    return int(json.loads(completed.stdout.splitlines()[-1])["wrong"])


@pytest.mark.parametrize("mode", ["eager", "adversarial"])
def test_replays_of_captured_copies_deliver_every_byte(
    run_simulated: RunSimulated, mode: str
) -> None:
    assert wrong_rounds(run_simulated, "sim_graph_copies.py", env={}, mode=mode, seed=1) == 0


@pytest.mark.parametrize("env", [{}, EXPANDABLE], ids=["native", "expandable"])
def test_a_correct_program_has_no_wrong_bytes(
    run_simulated: RunSimulated, env: dict[str, str]
) -> None:
    words = ("sim_race.py", "none")
    assert wrong_rounds(run_simulated, *words, env=env, mode="adversarial", seed=1) == 0


@pytest.mark.parametrize("mistake", ["wait", "record_stream"])
def test_a_synchronisation_left_out_shows_as_wrong_bytes(
    run_simulated: RunSimulated, mistake: str
) -> None:
    words = ("sim_race.py", mistake)
    assert wrong_rounds(run_simulated, *words, env={}, mode="adversarial", seed=1) > 0


def test_eager_execution_hides_the_same_mistake(run_simulated: RunSimulated) -> None:
    assert wrong_rounds(run_simulated, "sim_race.py", "wait", env={}, mode="eager", seed=1) == 0
