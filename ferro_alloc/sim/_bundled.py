"""Copies of libcudart that wheels bring along, with the simulated GPU's in their place.

auditwheel gives a library that it copies into a wheel a name of its own, and the wheel's modules
ask for that name: `torchvision.libs/libcudart.faf08d9a.so.13`. The loader takes a loaded library
whose soname is the one asked for. So each copy found gets a stand-in of that soname, an empty
library that needs our `libcudart.so.13`. There is one runtime in the process, whatever its names.
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
# As it is linked, by setup.py. As long as a file's name may be, and in the file once.
SONAME = b"libcudart." + b"x" * 242 + b".so"
COPIES = "*.libs/libcudart*.so.13*"


def find() -> list[str]:
    """The names of those that this interpreter's packages have."""
    found = {copy.name for entry in sys.path if entry for copy in Path(entry).glob(COPIES)}
    return sorted(found)


def renamed(library: bytes, soname: str) -> bytes:
    """The stand-in with another soname. Offsets stay, as the rest of the name's place is zeros."""
    assert library.count(SONAME) == 1
    return library.replace(SONAME, soname.encode().ljust(len(SONAME), b"\0"))


def stand_in(location: Path) -> None:
    """Loads one for each copy. `location` has the simulated GPU's libraries, loaded already."""
    names = find()
    if not names:
        return
    library = (location / STAND_IN).read_bytes()
    # Some programs look for the path of their libcudart in the memory map, and open it once more.
    folder = Path(tempfile.mkdtemp(prefix="ferro_alloc-"))
    atexit.register(_remove, folder, os.getpid())
    for name in names:
        path = folder / name
        path.write_bytes(renamed(library, name))
        ctypes.CDLL(str(path))


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
