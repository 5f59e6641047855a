"""A module of a wheel loads the copy of libcudart that the wheel contains."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from ferro_alloc.sim import _bundled, _library
from tests.conftest import RunSimulated

NAME = "libcudart.0a1b2c3d.so.13"
SOURCE = """\
int cudaGetDeviceCount(int* count);
int devices(void) {
  int count = 0;
  return cudaGetDeviceCount(&count) == 0 ? count : -1;
}
"""
PROGRAM = """\
import ctypes, glob, json, os, sys, tempfile
import torch
module = ctypes.CDLL(sys.argv[1])
maps = {line.split(maxsplit=5)[-1].strip() for line in open("/proc/self/maps")}
copies = [path for path in maps if path.endswith("libcudart.0a1b2c3d.so.13")]
again = ctypes.CDLL(copies[0])
count = ctypes.c_int()
print(json.dumps({
    "devices": module.devices(),
    "opened again": (again.cudaGetDeviceCount(ctypes.byref(count)), count.value),
    "same runtime": ctypes.cast(again.cudaMalloc, ctypes.c_void_p).value
        == ctypes.cast(ctypes.CDLL("libcudart.so.13").cudaMalloc, ctypes.c_void_p).value,
    "copies": copies,
}))
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc on this machine")
def test_a_copy_in_a_wheel_is_the_simulated_gpus(
    run_simulated: RunSimulated, tmp_path: Path
) -> None:
    libs = tmp_path / "wheel.libs"
    libs.mkdir()
    built = tmp_path / NAME
    built.write_bytes(_bundled.renamed((_library.folder() / _bundled.STAND_IN).read_bytes(), NAME))
    source, module = tmp_path / "module.c", tmp_path / "module.so"
    source.write_text(SOURCE)
    command = ["gcc", "-shared", "-fPIC", "-o", module, source, "-Wl,--no-as-needed", built]
    allowed = "-Wl,--allow-shlib-undefined,--unresolved-symbols=ignore-all"
    subprocess.run([*command, allowed, f"-Wl,-rpath,{libs}"], check=True)
    # The file is not a library, so loading it would fail.
    (libs / NAME).write_bytes(b"a copy")
    done = run_simulated(PROGRAM, str(module), env={"PYTHONPATH": str(tmp_path)}, count=3)
    found = json.loads(done.stdout.splitlines()[-1])
    (copy,) = found.pop("copies")
    assert found == {"devices": 3, "opened again": [0, 3], "same runtime": True}
    assert not Path(copy).exists(), "left behind"


def test_names_are_replaced_in_place() -> None:
    library = b"before" + _bundled.SONAME + b"\0after"
    name = "libcudart.faf08d9a.so.13"
    renamed = _bundled.renamed(library, name)
    assert len(renamed) == len(library)
    assert renamed.startswith(b"before" + name.encode() + b"\0")
    assert renamed.endswith(b"\0after")
    with pytest.raises(AssertionError):
        _bundled.renamed(b"no such name", name)
