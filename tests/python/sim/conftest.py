"""The command `simulate` as a fixture, and what is no part of a program that a test runs."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ferro_alloc.sim import _sources
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


def leave_out_what_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets no file count as the program's that this process has loaded or runs, or that is a
    test's."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    files += [frame.f_code.co_filename for frame, _ in traceback.walk_stack(None)]
    loaded = tuple(file for file in files if file and _sources.is_of_program(file))
    checkout = str(Path(__file__).parents[3]) + "/"
    monkeypatch.setattr(_sources, "_LIBRARIES", (*_sources._LIBRARIES, checkout, *loaded))
