"""Benchmarks that are C++ programs, built with the C++ tests, whose libraries they share."""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.processes import ROOT

TREE = ROOT / "build" / "cpp-release"


def build(target: str) -> Path:
    """Builds the program of this name; SystemExit with the build's output if that fails."""
    cmake = shutil.which("cmake")
    if cmake is None:
        raise SystemExit(f"cmake was not found: it is needed to build {target}")
    setup = importlib.import_module("setup")  # it knows where CUDA is
    # What is measured are the objects of which the extension is made.
    objects = f"-DFERRO_OBJECTS={setup.torch_free_objects()}"
    include = f"-DFERRO_CUDA_INCLUDE={setup.cuda_include(13)}"
    options = ["-DFERRO_BUILD_BENCHMARKS=ON", include, objects]
    jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))
    TREE.mkdir(parents=True, exist_ok=True)
    # One after the other: tests that run side by side build different programs in this tree.
    with (TREE / "benchmarks.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run([cmake, "--preset", "release", *options])
        run([cmake, "--build", str(TREE), "--target", target, "-j", jobs])
    return TREE / "benchmarks" / target


def run(command: Sequence[str]) -> str:
    """Returns the output of a command; shows it if the command fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout
