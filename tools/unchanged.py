"""Records which tests passed with exactly the current files, so that they need not run again.

A record also holds what the tests read of the machine: the installed packages, the compilers and
browsers, and variables that choose tests or change programs.

The files that a test reads are found by names. A test of PyTorch programs reads the package with
its libraries, the files that all tests share, and each file that one of these refers to, as
"program.py" or by an import. A test of the repository reads everything. A file of tests with the
mark no_extension does not read the allocator's extension, which its programs cannot load.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PASSED = ROOT / "build" / "test-passed.json"
REASON = "passed before with the same files; AGAIN=1 runs it all the same"

CPP = ("CMakeLists.txt", "CMakePresets.json", "csrc/ferro", "csrc/sim", "tests/cpp")
# What compiles the objects that the release tree links.
BUILD = ("setup.py", "compiling.py")
PACKAGE = ("ferro_alloc", "ferro_alloc.pth", "pyproject.toml", *BUILD)
SHARED = (
    *("tests/conftest.py", "tests/fork_server.py", "tests/programs.py", "tools/patience.py"),
    *("tests/no_extension/sitecustomize.py", "tests/start/sitecustomize.py"),
)
NO_EXTENSION = "pytestmark = pytest.mark.no_extension\n"
MADE = (".venv", "build", "demo-out", "dist")
# The files that a word in a test's files stands for, including folders.
NAMED = {
    "README": ("README.md",),
    "benchmarks": ("benchmarks", "CMakeLists.txt"),
    "cpp": ("tests/cpp",),
    "csrc": ("csrc",),
    "docs": ("docs",),
    "mutants": ("tests/mutants",),
}


PROGRAMS = (
    *("g++", "gcc", "cc", "clang++", "readelf", "cmake", "ninja"),
    *("chromium", "chromium-browser", "google-chrome"),
)
# The beginnings of the names of variables that choose tests, or that their programs inherit.
VARIABLES = (
    *("CUDA", "CXX", "FERRO_", "GTEST_", "LDFLAGS", "LD_", "OMP_"),
    *("PYTEST_", "PYTHON", "PYTORCH_", "TORCH"),
)


def files_below(*names: str) -> list[Path]:
    found = []
    for name in names:
        top = ROOT / name
        paths = [top] if top.is_file() else top.rglob("*")
        found += [p for p in paths if p.is_file() and "__pycache__" not in p.parts]
    return found


@cache
def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def machine() -> str:
    """What tests read besides files of the checkout. Tests that lack a program are skipped, so
    they must run once it is installed."""
    packages = {f"{each.name} {each.version}" for each in importlib.metadata.distributions()}
    programs = [_program(name) for name in PROGRAMS]
    variables = sorted(each for each in os.environ.items() if each[0].startswith(VARIABLES))
    return json.dumps([sys.version, sorted(packages), programs, variables])


def _program(name: str) -> tuple[str, int, int] | None:
    path = shutil.which(name)
    if path is None:
        return None
    status = Path(path).stat()
    return path, status.st_size, status.st_mtime_ns


def digest(paths: Iterable[Path]) -> str:
    """The digest of names and contents, and of this machine."""
    whole = hashlib.sha256(machine().encode())
    for path in sorted(set(paths)):
        whole.update(f"{path.relative_to(ROOT)} {_digest_of(path)}\n".encode())
    return whole.hexdigest()


@cache
def _named_in(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The stems of files of the tests in a file, and its words."""
    text = path.read_text(errors="replace")
    imported = re.findall(r"^\s*(?:from [\w.]+ )?import .*", text, re.MULTILINE)
    modules = {part for line in imported for part in re.findall(r"\w+", line)}
    programs = set(re.findall(r"[\"'](\w+)\.py[\"']", text))
    programs = {name for name in programs if not name.startswith("test_")}
    return frozenset(modules | programs), frozenset(re.findall(r"\w+", text))


@cache
def _test_files() -> dict[str, list[Path]]:
    named: dict[str, list[Path]] = {}
    for path in files_below("tests/python", "tools"):
        named.setdefault(path.stem, []).append(path)
    return named


def read_by(test: Path) -> set[Path]:
    """The files that a file of tests reads, including itself."""
    if "repo" in test.parts:
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:  # no git, or not a checkout of it
            return set(
                files_below(*(path.name for path in ROOT.iterdir() if path.name not in MADE))
            )
        names = filter(None, done.stdout.split("\0"))
        return {ROOT / name for name in names if (ROOT / name).is_file()}
    found: set[Path] = set()
    named: set[str] = set()
    waiting = [test, *files_below(*SHARED)]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        stems, words = _named_in(path)
        named |= {place for word in words & NAMED.keys() for place in NAMED[word]}
        for name in stems & _test_files().keys():
            waiting += _test_files()[name]
    found |= set(files_below(*PACKAGE, *named))
    if NO_EXTENSION in test.read_text():
        found -= set(ROOT.glob("ferro_alloc/_C.*.so"))
    return found


def read_record(path: Path) -> dict[str, Any]:
    """Empty if there is none, or it is damaged."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_record(path: Path, record: dict[str, Any]) -> None:
    """As a whole: a reader never sees half of it, also after an interrupt or on a full disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(record, indent=1))
    fresh.replace(path)


class Passed:
    """The passed tests, stored in the build folder."""

    def __init__(self, path: Path = PASSED) -> None:
        self._path = path
        self._known: dict[str, str] = read_record(path)

    def is_known(self, name: str, fingerprint: str) -> bool:
        return self._known.get(name) == fingerprint

    def forget(self) -> None:
        self._known.clear()

    def note(self, passed: dict[str, str], failed: Iterable[str] = ()) -> None:
        """Records passed and failed names, with their fingerprints from before the run."""
        self._known |= passed
        for name in failed:
            self._known.pop(name, None)
        write_record(self._path, self._known)
