"""What later versions of torch ask of an allocator, as native does it; skipped by older ones."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

import setup as ferro_setup
from ferro_alloc import _load
from tests.conftest import PROGRAMS, ROOT
from tests.python.torch_programs import Result, simulated


def checks_of(program: str) -> list[str]:
    text = (PROGRAMS / program).read_text()
    return re.findall(r"^@since\(\d+\)\ndef (\w+)", text, re.MULTILINE)


def assert_as_native(found: Result, native: Result) -> None:
    if "absent" in found:
        pytest.skip(found["absent"])
    assert "error" not in found, found["error"]
    assert "error" not in native, native["error"]
    assert found["value"] == native["value"]


@cache
def outcomes(allocator: str) -> Result:
    return simulated("features_versions.py", allocator, memory="1GiB")


@pytest.mark.parametrize("name", checks_of("features_versions.py"))
def test_as_native(name: str) -> None:
    assert_as_native(outcomes("ferro")[name], outcomes("native")[name])


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of tests/cpp/torch, built for the installed torch."""
    torch, cuda = _load.running_torch()
    if ferro_setup.minor_version(torch) < (2, 12):
        pytest.skip("torch 2.12 introduced it")
    assert cuda is not None
    library = tmp_path_factory.mktemp("probe") / "allocator_probe.so"
    source = ROOT / "tests" / "cpp" / "torch" / "allocator_probe.cpp"
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    includes = [folder / "include", ferro_setup.cuda_include(int(cuda.split(".")[0]))]
    command = [
        *("g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-o", str(library), str(source)),
        *(f"-isystem{path}" for path in includes),
        *(f"-L{folder / 'lib'}", "-lc10", "-lc10_cuda", "-l:libstdc++.so.6"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return library


@pytest.mark.parametrize("name", checks_of("features_probe.py"))
def test_from_cpp_as_native(probe: Path, name: str) -> None:
    found, native = (probed(allocator, probe)[name] for allocator in ("ferro", "native"))
    assert_as_native(found, native)


@cache
def probed(allocator: str, library: Path) -> Result:
    return simulated("features_probe.py", allocator, str(library), memory="1GiB")
