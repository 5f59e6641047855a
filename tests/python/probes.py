"""Builds the libraries that programs load: of tests/cpp/torch, and of tests/mutants."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import setup as ferro_setup
from ferro_alloc import _load
from tests.programs import ROOT


def build_probe(source: str, folder: Path) -> Path:
    """The library in `folder`, made of a file of tests/cpp/torch for the installed torch."""
    _, cuda = _load.running_torch()
    assert cuda is not None
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    torch = Path(spec.origin).parent
    library = (folder / source).with_suffix(".so")
    includes = [torch / "include", ferro_setup.cuda_include(int(cuda.split(".")[0]))]
    command = [
        *("g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-o", str(library)),
        str(ROOT / "tests" / "cpp" / "torch" / source),
        *(f"-isystem{path}" for path in includes),
        *(f"-L{torch / 'lib'}", "-lc10", "-lc10_cuda", "-l:libstdc++.so.6"),
    ]
    return _compiled(command, library)


def build_faulty_driver(folder: Path) -> Path:
    library = folder / "faulty_driver.so"
    command = [
        *("g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"),
        *(f"-I{ROOT / 'csrc'}", "-isystem", str(ferro_setup.cuda_include(13))),
        *(str(ROOT / "tests" / "mutants" / "faulty_driver.cpp"), "-o", str(library)),
    ]
    return _compiled(command, library)


def _compiled(command: list[str], library: Path) -> Path:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return library
