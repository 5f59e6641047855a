"""The recipes of docs/reinforcement-learning.md: a trainer and an engine take turns on one card."""

from __future__ import annotations

from tests.python.torch_programs import simulated


def test_one_process() -> None:
    # The trainer has 60 MiB and activations of 60; the engine 20 of weights and a cache of 80.
    # cuBLAS's workspaces take 34 MiB.
    found = simulated("recipes.py", "one", memory="200MiB")
    assert found["used"] == [94, 114, 134] * 3
    assert found["good"]


def test_two_processes() -> None:
    # While the trainer holds 140 MiB the engine cannot wake, and tries again when the trainer
    # sleeps.
    found = simulated("recipes.py", "two", memory="204MiB")
    assert found["used"] == [140, 100, 0] * 3
    assert found["good"]
    assert found["status"] == 0
