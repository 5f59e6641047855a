"""Builds and tests ferro_alloc with the versions of torch that it supports, on the simulated GPU.

    make test-versions                         all of them
    make test-versions VERSIONS="2.12 2.15"    these
    python tools/versions.py 2.12 2.15         the same

Each version has a folder under build/versions: an environment with that torch, and a copy of the
sources that is built in place. The build of this checkout is not touched. The current environment
serves its own version; the other versions are installed, or skipped without a package index.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools import execution  # noqa: E402
from tools.execution import Command, side_by_side, tail  # noqa: E402
from tools.results import Result, choose, finish, read_junit, run_each, skip  # noqa: E402

FOLDER = ROOT / "build" / "versions"
REQUIREMENTS = ROOT / "tools" / "requirements.txt"
# It shares the files of equal packages between environments, which saves half of the 4 GB of each.
INSTALLER = "uv==0.13.9"
PIP_SETTINGS = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_CERT": "SSL_CERT_FILE",
    "PIP_DEFAULT_TIMEOUT": "UV_HTTP_TIMEOUT",
}

# The files that a build and its tests read.
COPIED = (
    *("CMakeLists.txt", "README.md", "LICENSE", "MANIFEST.in"),
    *("compiling.py", "ferro_alloc.pth", "pyproject.toml", "setup.py"),
    *("benchmarks", "csrc", "docs", "ferro_alloc", "tests", "tools"),
)
BUILT = ("*.so", "*.so.*", "__pycache__", "_build_info.py")
# The tests that depend on torch's interface. All tests run with one version.
TESTS = (
    "tests/python/features/test_torch_features.py",
    "tests/python/features/test_torch_versions.py",
    "tests/python/features/test_torch_interface.py",
    "tests/python/seeded/test_torch_judge.py",
    "tests/python/clients/test_install.py",
    "tests/python/clients/test_versions.py",
    "tests/python/clients/test_cli.py",
    "tests/python/graphs/test_graph_captures.py",
    "tests/python/switching/test_both_allocators.py",
)


@dataclass(frozen=True)
class Version:
    torch: str
    cuda: str  # of the headers that torch's wheels lack

    @property
    def minor(self) -> str:
        return self.torch.rpartition(".")[0]

    @property
    def name(self) -> str:
        return f"torch {self.minor}"

    @property
    def folder(self) -> Path:
        return FOLDER / self.minor

    @property
    def tree(self) -> Path:
        return self.folder / "tree"


VERSIONS = (
    Version("2.11.0", "13.0"),
    Version("2.12.1", "13.0"),
    Version("2.13.0", "13.0"),
    Version("2.14.0", "13.0"),
    Version("2.15.0", "13.2"),
)


def installed() -> str:
    """The minor version of this Python's torch."""
    return ".".join(importlib.metadata.version("torch").split(".")[:2])


def requirements(version: Version) -> str:
    """tools/requirements.txt with that torch and its CUDA headers."""
    pinned = {"torch": version.torch, "nvidia-cuda-crt": f"{version.cuda}.*"}
    lines = []
    for line in REQUIREMENTS.read_text().splitlines():
        name = line.partition("==")[0]
        lines.append(f"{name}=={pinned[name]}" if name in pinned else line)
    return "\n".join(lines) + "\n"


def execute(log: Path, command: Command, cwd: Path = ROOT) -> bool:
    """Runs a command into a log file, without the user's settings for Python."""
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHON")}
    # The installer has its own names for pip's settings, and shares files by hard links.
    env |= {new: env[old] for old, new in PIP_SETTINGS.items() if old in env and new not in env}
    env |= {"UV_CACHE_DIR": str(FOLDER / "cache"), "UV_LINK_MODE": "hardlink"}
    # The copy is not a checkout, but its warnings must be errors too.
    env["FERRO_STRICT"] = "1"
    return execution.execute(log, command, cwd, env)


def find_installer() -> Path | None:
    """None if it is not installed and no package index is reachable."""
    found = FOLDER / "tools" / "bin" / "uv"
    if found.exists():
        return found
    log = FOLDER / "tools.log"
    made = execute(log, [sys.executable, "-m", "venv", FOLDER / "tools"])
    pip: Command = [
        FOLDER / "tools" / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--timeout",
        "10",
        "--retries",
        "0",
        INSTALLER,
    ]
    return found if made and execute(log, pip) and found.exists() else None


def find_python(version: Version) -> Path | None:
    """The interpreter of an environment with that torch; None if it can't be created."""
    if version.minor == installed():
        return Path(sys.executable)
    venv = version.folder / "venv"
    python = venv / "bin" / "python"
    stamp = version.folder / "requirements.txt"
    wanted = requirements(version)
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    installer = find_installer()
    if installer is None:
        return None
    log = version.folder / "environment.log"
    fresh = version.folder / "wanted.txt"
    made: Command = [installer, "venv", "--clear", "--python", sys.executable, venv]
    fill: Command = [installer, "pip", "install", "--python", python, "--requirements", fresh]
    if not execute(log, made):
        return None
    fresh.write_text(wanted)
    if not execute(log, fill):
        return None
    fresh.replace(stamp)
    return python


def files_of(folder: Path) -> Iterator[Path]:
    """The files of COPIED below a folder, relative to it, without build outputs."""
    for name in COPIED:
        top = folder / name
        for path in [top] if top.is_file() else top.rglob("*"):
            relative = path.relative_to(folder)
            made = any(Path(part).match(pattern) for part in relative.parts for pattern in BUILT)
            if path.is_file() and not made:
                yield relative


def copy_sources(version: Version) -> None:
    """Updates the tree's sources from this checkout; unchanged ones keep their times."""
    wanted = set(files_of(ROOT))
    for path in wanted:
        source, copy = ROOT / path, version.tree / path
        if copy.exists() and copy.stat().st_mtime == source.stat().st_mtime:
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy)
    for path in set(files_of(version.tree)) - wanted:
        (version.tree / path).unlink()


def build(version: Version, python: Path) -> bool:
    copy_sources(version)
    log = version.folder / "build.log"
    done = execute(log, [python, "setup.py", "-q", "build_ext", "--inplace"], cwd=version.tree)
    if not done:
        print(f"the build with {version.name} failed; the end of {log}:\n{tail(log)}", flush=True)
    return done


def test(version: Version) -> Result:
    """Builds and tests with one version; the logs are in its folder."""
    python = find_python(version)
    if python is None:
        return skip(version.name, f"torch {version.torch} is not here and can't be installed")
    if not build(version, python):
        return Result(version.name, failed=1)
    log, report = version.folder / "test.log", version.folder / "test.xml"
    report.unlink(missing_ok=True)
    pytest: Command = [python, "-m", "pytest", "-v", "-p", "no:cacheprovider"]
    command = [*pytest, f"--junitxml={report}", *side_by_side(), *TESTS]
    if not (ok := execute(log, command, cwd=version.tree)):
        print(f"tests with {version.name} failed; the end of {log}:\n{tail(log)}", flush=True)
    if not report.exists():
        return Result(version.name, failed=1)
    return read_junit(version.name, report, ok)


def main() -> int:
    known = {version.minor: version for version in VERSIONS}
    asked = choose("versions", known, sys.argv[1:])
    return finish(run_each(asked, lambda minor: test(known[minor]), "torch {}"))


if __name__ == "__main__":
    sys.exit(main())
