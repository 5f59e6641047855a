"""Runs programs of tests/python on the simulated GPU and reads their last line of JSON.

These functions give results that several tests share; the fixture `run_simulated` serves a single
test.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.programs import Completed, find_program

Result = dict[str, Any]


def checks_of(program: str) -> list[str]:
    """The names of a program's checks, also of those for later versions of torch."""
    text = find_program(program).read_text()
    return re.findall(r"^@(?:check\w*|since\(\d+\))\ndef (\w+)", text, re.MULTILINE)


def simulated(
    program: str,
    *arguments: str,
    turn: str = "",
    conf: str = "",
    env: Mapping[str, str] | None = None,
    start_anew: bool = False,
    **activate: Any,
) -> Result:
    """The result of the program; without one the test fails.

    `turn` is how likely a CUDA call does queued work; a low one leaves more of it queued. `conf` is
    FERRO_ALLOC_CONF.
    """
    settings = {"FERRO_SIM_TURN": turn, "FERRO_ALLOC_CONF": conf, **(env or {})}
    given = {key: value for key, value in settings.items() if value}
    words: list[str | Path] = [find_program(program), *arguments]
    return result_of(programs.run_simulated(words, activate, given, start_anew))


def assert_as_native(found: Result, native: Result) -> None:
    """Compares the outcomes of a check under an allocator and native; skips checks that this torch
    lacks."""
    if "absent" in found:
        pytest.skip(found["absent"])
    assert "error" not in found, found["error"]
    assert "error" not in native, native["error"]
    assert found["value"] == native["value"]


def result_of(done: Completed) -> Result:
    """The result in the last line; without one the test fails."""
    lines = done.stdout.splitlines()
    if not lines or not lines[-1].startswith("{"):
        pytest.fail(f"the program ended with {done.returncode}\n{done.stdout}{done.stderr}")
    print(done.stderr, file=sys.stderr)
    result: Result = json.loads(lines[-1])
    return result
