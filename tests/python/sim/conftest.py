"""The command `simulate` as a fixture."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.programs import Completed
from tests.python.commands import command

Result = dict[str, Any]
Simulate = Callable[..., tuple[Completed, Result]]


@pytest.fixture
def simulate(tmp_path: Path) -> Simulate:
    """Runs a program with options of the command; returns the completed process and the JSON
    result.

    Torch is loaded beforehand. The children of `--compare` start as they do for a user.
    """

    def run(
        program: str,
        *options: str,
        arguments: tuple[str, ...] = (),
        env: Mapping[str, str] = {},
    ) -> tuple[Completed, Result]:
        script, found = tmp_path / "train.py", tmp_path / "result.json"
        script.write_text(program)
        words = ("simulate", *options, "--json", str(found), str(script), *arguments)
        done = command(*words, env=env)
        return done, json.loads(found.read_text())

    return run
