"""The recipes of docs/reinforcement-learning.md: a trainer and an engine take turns on one card."""

from __future__ import annotations

from tests.python.torch_programs import simulated


def test_one_process() -> None:
    # The trainer has 300 MiB and activations of 300; the engine 100 of weights and a cache of 400.
    # cuBLAS's workspaces take 34 MiB.
    found = simulated("recipes.py", "one", memory="900MiB")
    assert found["used"] == [334, 434, 534] * 3
    assert found["good"]


def test_two_processes() -> None:
    # While the trainer holds 700 MiB the engine cannot wake, and tries again when the trainer
    # sleeps.
    found = simulated("recipes.py", "two", memory="1GiB")
    assert found["used"] == [700, 500, 0] * 3
    assert found["good"]
    assert found["status"] == 0
