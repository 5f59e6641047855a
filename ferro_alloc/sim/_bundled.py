"""Replaces the copies of libcudart in wheels by the simulated GPU's.

auditwheel copies a library into a wheel under a new name, and the wheel's modules ask for that
name: `torchvision.libs/libcudart.faf08d9a.so.13`. The loader uses a loaded library whose soname is
the requested name. So each copy gets a stand-in of that soname, an empty library that depends on
the simulated `libcudart.so.13`. The process has one runtime under all names.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import sys
import tempfile
from pathlib import Path

STAND_IN = "libcudart-stand-in.so"
# The soname with which setup.py links it: of the maximum length of a file name, and once in the
# file.
SONAME = b"libcudart." + b"x" * 242 + b".so"
COPIES = "*.libs/libcudart*.so.13*"


def find() -> list[str]:
    """Returns the names of the copies in this interpreter's packages."""
    found = {copy.name for entry in sys.path if entry for copy in Path(entry).glob(COPIES)}
    return sorted(found)


def renamed(library: bytes, soname: str) -> bytes:
    """Returns the stand-in with another soname, padded with zeros so that offsets stay."""
    assert library.count(SONAME) == 1
    return library.replace(SONAME, soname.encode().ljust(len(SONAME), b"\0"))


def stand_in(location: Path) -> None:
    """Loads one for each copy. `location` has the simulated GPU's libraries, already loaded."""
    names = find()
    if not names:
        return
    library = (location / STAND_IN).read_bytes()
    # Some programs read the path of their libcudart from the memory map, and open it again.
    folder = Path(tempfile.mkdtemp(prefix="ferro_alloc-"))
    atexit.register(_remove, folder, os.getpid())
    for name in names:
        path = folder / name
        path.write_bytes(renamed(library, name))
        ctypes.CDLL(str(path))


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
