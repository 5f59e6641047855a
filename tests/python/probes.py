"""Builds the libraries of tests/cpp/torch, which programs load, for the installed torch."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import setup as ferro_setup
from ferro_alloc import _load
from tests.conftest import ROOT


def build_probe(source: str, folder: Path) -> Path:
    """The library in `folder`, made of a file of tests/cpp/torch."""
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
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return library
