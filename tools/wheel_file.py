"""Checks that a wheel is small, and contains each library once and stripped.

`readelf`, which comes with every compiler, reads the libraries.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import zipfile
from collections import Counter
from pathlib import Path, PurePosixPath

MOST_BYTES = 3_000_000
EXTENSIONS = ("_C", "_values")
LIBRARIES = (
    "libcuda.so.1",
    "libcudart.so.13",
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libnvidia-ml.so.1",
    "libnccl.so.2",
    "libcudart-stand-in.so",
)
ELF = b"\x7fELF"
UNSTRIPPED = re.compile(r"\s(\.symtab|\.z?debug_\w+)\s")
TAG = re.compile(r"-(manylinux_2_\d+_x86_64)\.whl$")


def libraries(wheel: Path) -> dict[str, bytes]:
    """The shared libraries in the wheel, by their paths."""
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    return {name: data for name, data in contents.items() if data.startswith(ELF)}


def is_stripped(data: bytes) -> bool:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        done = subprocess.run(["readelf", "-SW", file.name], capture_output=True, text=True)
    if done.returncode != 0 or ".dynsym" not in done.stdout:
        raise ValueError(f"readelf reads no shared library: {done.stdout}{done.stderr}")
    return not UNSTRIPPED.search(done.stdout)


def problems(wheel: Path) -> list[str]:
    """The problems of a wheel, one sentence each."""
    found = []
    size = wheel.stat().st_size
    if size > MOST_BYTES:
        found.append(f"{wheel.name} has {size:,} bytes: expected at most {MOST_BYTES:,}")
    inside = libraries(wheel)
    names = Counter(PurePosixPath(path).name for path in inside)
    found += [f"{name} is in the wheel {n} times" for name, n in names.items() if n > 1]
    contents = Counter(inside.values())
    copies = [path for path, data in inside.items() if contents[data] > 1]
    if copies and len({PurePosixPath(path).name for path in copies}) > 1:
        found.append(f"{', '.join(copies)} are the same library")
    found += [f"{name} is missing" for name in LIBRARIES if name not in names]
    found += [
        f"the extension {extension} is missing"
        for extension in EXTENSIONS
        if not any(re.match(rf"{extension}\..*\.so$", name) for name in names)
    ]
    found += [f"{path} is not stripped" for path, data in inside.items() if not is_stripped(data)]
    return found


def repair_problems(before: Path, after: Path) -> list[str]:
    """The changes by the repair beyond the manylinux tag."""
    found = [] if manylinux_tag(after) else [f"{after.name} has no manylinux tag"]
    if libraries(before) != libraries(after):
        found.append("the libraries are not those that were built")
    return found


def manylinux_tag(wheel: Path) -> str:
    """The tag, such as manylinux_2_35_x86_64; empty for a wheel without one."""
    match = TAG.search(wheel.name)
    return match[1] if match else ""
