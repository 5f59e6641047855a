"""Runs the programs of tests/python that are made from a seed."""

from __future__ import annotations

from pathlib import Path

from tests import programs
from tests.programs import find_program
from tests.python.torch_programs import Result, result_of


def seeded(*arguments: str, runner: str = "", env: dict[str, str] | None = None) -> Result:
    """The summary of seeded.py, whatever it found; `runner`: a program that runs it."""
    words: list[str | Path] = [
        *(find_program(name) for name in (runner, "seeded.py") if name),
        *arguments,
    ]
    return result_of(programs.run_simulated(words, None, env))


def fuzzed(*arguments: str) -> Result:
    """The summary of fuzz_torch.py, whatever it found; what was wrong is in the test's output."""
    return result_of(programs.run_simulated([find_program("fuzz_torch.py"), *arguments], None))
