"""The workflows of docs/pytest.md: they are YAML, and their commands exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.programs import ROOT

yaml = pytest.importorskip("yaml")

BLOCKS = [
    yaml.safe_load(text)
    for text in re.findall(
        r"^```yaml\n(.*?)^```", (ROOT / "docs/pytest.md").read_text(), re.DOTALL | re.MULTILINE
    )
]
WORKFLOW: dict[Any, Any] = next(block for block in BLOCKS if isinstance(block, dict))
OWN_STEPS: list[dict[str, Any]] = next(block for block in BLOCKS if isinstance(block, list))
JOBS: dict[str, list[dict[str, Any]]] = {
    **{name: job["steps"] for name, job in WORKFLOW["jobs"].items()},
    "own": OWN_STEPS,
}


def commands(steps: list[dict[str, Any]]) -> list[list[str]]:
    return [shlex.split(step["run"]) for step in steps if "run" in step]


def pytest_words(steps: list[dict[str, Any]]) -> list[str]:
    (found,) = [words[1:] for words in commands(steps) if words[0] == ".venv/bin/pytest"]
    return found


@pytest.fixture(scope="module")
def known_options() -> set[str]:
    """Those of pytest, xdist and the plugin."""
    plugins = ("-p", "xdist", "-p", "ferro_alloc.pytest_plugin")
    words = [sys.executable, "-m", "pytest", *plugins, "--help"]
    help_text = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {plain(option) for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", help_text)}


def plain(option: str) -> str:
    """pytest knows `--junitxml` and `--junit-xml`."""
    return option.strip("-").replace("-", "")


def test_the_workflow_has_a_trigger_and_two_jobs() -> None:
    # YAML 1.1 reads the key "on" as true.
    assert WORKFLOW.keys() == {"name", True, "env", "jobs"}
    assert WORKFLOW[True] == ["push", "pull_request"]
    assert {name: job["runs-on"] for name, job in WORKFLOW["jobs"].items()} == {
        "gpu": ["self-hosted", "linux", "gpu"],
        "simulated": "ubuntu-latest",
    }
    steps = [step for job in JOBS.values() for step in job]
    assert all(len({"run", "uses"} & step.keys()) == 1 for step in steps)
    assert all(step.keys() <= {"run", "uses", "if", "with"} for step in steps)


@pytest.mark.parametrize("job", JOBS)
def test_commands_exist(job: str, known_options: set[str]) -> None:
    made = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for words in commands(JOBS[job]):
        if words[0] == "make":
            assert set(words[1:]) <= set(made)
        else:
            # The environment that an earlier step makes; `make build` makes it too.
            assert words[0] in ("python3", ".venv/bin/pip", ".venv/bin/pytest")
    given = [word.partition("=")[0] for word in pytest_words(JOBS[job]) if word[0] == "-"]
    options = {plain(option) for option in given}
    assert options <= known_options


@pytest.mark.parametrize("job", JOBS)
def test_files_exist(job: str) -> None:
    words = pytest_words(JOBS[job])
    written = {word.partition("=")[2] for word in words if word.startswith("--junitxml=")}
    uploaded = {step["with"]["path"] for step in JOBS[job] if "with" in step}
    assert uploaded <= written
    for word in words:
        if "/" in word:
            assert (ROOT / word).is_dir(), word


def test_packages_for_the_options_are_installed() -> None:
    for name, steps in JOBS.items():
        if name != "own" and "-n" in pytest_words(steps):
            installs = [words for words in commands(steps) if words[0] == ".venv/bin/pip"]
            assert any("pytest-xdist" in words for words in installs)


def test_the_marker_of_the_own_suite_is_declared() -> None:
    words = pytest_words(OWN_STEPS)
    marker = words[words.index("-m") + 1]
    assert f'"{marker}: ' in (ROOT / "pyproject.toml").read_text()
    tests = Path(next(word for word in words if "/" in word))
    assert list((ROOT / tests).glob("test_*.py"))
