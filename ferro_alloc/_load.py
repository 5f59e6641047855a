"""Loads the extension `_C`, after checking that it was compiled for the running torch.

The extension overrides virtual functions of a C++ class of torch whose layout changes between minor
versions. Under another version it would silently call the wrong functions. So the versions are
compared first, without importing torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from ferro_alloc._errors import FerroError

# Minor versions that the extension can be compiled for, the first and the last.
SUPPORTED = ((2, 11), (2, 15))
# Without --no-deps pip would replace torch by the newest allowed version.
REBUILD = "build it again with `pip install --no-build-isolation --no-deps --force-reinstall .`"


def built_for() -> tuple[str, str]:
    """Versions of torch and CUDA for which the extension was compiled, as in ("2.11.0", "13.0")."""
    try:
        info = importlib.import_module("ferro_alloc._build_info")
    except ModuleNotFoundError:
        raise FerroError(
            "the extension of ferro_alloc is not built: run `make build` in a checkout, or "
            "`pip install --no-build-isolation .`"
        ) from None
    return str(info.TORCH_VERSION), str(info.CUDA_VERSION)


def running_torch() -> tuple[str, str | None]:
    """Versions of the installed torch and of its CUDA, which is None for a build without CUDA.

    Reads torch/version.py; imports nothing.
    """
    loaded = sys.modules.get("torch")
    if loaded is not None and hasattr(loaded, "__version__") and hasattr(loaded, "version"):
        return str(loaded.__version__), loaded.version.cuda
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise FerroError("torch is not installed, and ferro_alloc needs it: `pip install torch`")
    source = Path(spec.origin).with_name("version.py").read_text()
    names: dict[str, object] = {}
    exec(compile(source, "torch/version.py", "exec"), names)
    cuda = names.get("cuda")
    return str(names["__version__"]), None if cuda is None else str(cuda)


def check_versions(built: tuple[str, str], running: tuple[str, str | None]) -> None:
    """Raises `FerroError` unless the running torch is a supported one with CUDA, and both have the
    same torch minor and CUDA major version."""
    (built_torch, built_cuda), (torch, cuda) = built, running
    if cuda is None:
        raise FerroError(
            f"ferro_alloc was built for torch {built_torch} with CUDA {built_cuda}, and the "
            f"installed torch {torch} has no CUDA: install a CUDA build of torch"
        )
    oldest, newest = SUPPORTED
    if not oldest <= _minor(torch) <= newest:
        raise FerroError(
            f"ferro_alloc supports torch {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}, and "
            f"torch {torch} is running: install a torch of that range"
        )
    if _minor(built_torch) != _minor(torch) or _major(built_cuda) != _major(cuda):
        raise FerroError(
            f"ferro_alloc was built for torch {built_torch} with CUDA {built_cuda}, and torch "
            f"{torch} with CUDA {cuda} is running: {REBUILD}, or install the torch it was built for"
        )


@cache
def load() -> ModuleType:
    """Returns the extension. Imports torch. A failure is not cached: a later call may succeed."""
    check_versions(built_for(), running_torch())
    importlib.import_module("torch")  # its libraries must be loaded before the extension
    try:
        return importlib.import_module("ferro_alloc._C")
    except ImportError as error:
        raise FerroError(f"the extension does not load ({error}): {REBUILD}") from error


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _major(version: str) -> int:
    return int(version.split(".", maxsplit=1)[0])
