"""Builds the libraries that programs load: of tests/cpp/torch, and of tests/mutants."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import setup as ferro_setup
from ferro_alloc import _load
from tests.programs import ROOT


def build_probe(source: str, folder: Path) -> Path:
    """Compiles a file of tests/cpp/torch for the installed torch, in `folder`, and keeps the
    library in the build folder."""
    _, cuda = _load.running_torch()
    assert cuda is not None
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    torch = Path(spec.origin).parent
    library = (folder / source).with_suffix(".so")
    includes = [torch / "include", ferro_setup.cuda_include(int(cuda.split(".")[0]))]
    text = ROOT / "tests" / "cpp" / "torch" / source
    command = [
        *("g++", "-std=c++20", "-O1", "-shared", "-fPIC"),
        str(text),
        *(f"-isystem{path}" for path in includes),
        *(f"-L{torch / 'lib'}", "-lc10", "-lc10_cuda", "-l:libstdc++.so.6"),
    ]
    # The file includes only headers of torch.
    made_of = [*command, importlib.metadata.version("torch"), text.read_text()]
    key = hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]
    kept = ROOT / "build" / "probes" / f"{text.stem}-{key}.so"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        _compiled([*command, "-o", str(library)], library)
        shutil.copy(library, kept.with_suffix(f".{os.getpid()}"))
        kept.with_suffix(f".{os.getpid()}").replace(kept)
    return kept


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
