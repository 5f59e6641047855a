"""The libraries of the simulated GPU, and their control functions."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from ferro_alloc._errors import FerroError
from ferro_alloc.sim import _bundled

DRIVER = "libcuda.so.1"
CUDA_LIBRARIES = (DRIVER, "libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13")
# Each depends only on those before it.
LIBRARIES = (
    *(*CUDA_LIBRARIES, "libnvidia-ml.so.1", "libnccl.so.2", "libcudnn.so.9"),
    *("libcufft.so.12", "libcusparse.so.12", "libcusolver.so.12"),
)


def folder() -> Path:
    """Returns the folder of the libraries: `FERRO_SIM_LIB`, or else in the package."""
    named = os.environ.get("FERRO_SIM_LIB")
    found = Path(named) if named else Path(__file__).with_name("lib")
    wanted = (*LIBRARIES, _bundled.STAND_IN)
    missing = [name for name in wanted if not (found / name).exists()]
    if missing:
        raise FerroError(
            f"the simulated GPU is not built: {found} has no {missing[0]}; run `make build` in a "
            "checkout, or install the package again"
        )
    return found.resolve()


def check_free(location: Path) -> None:
    """Raises `FerroError` if real CUDA libraries are already loaded in this process.

    Those in `location` are the simulated GPU's, which a preloaded library may have loaded.
    """
    lines = Path("/proc/self/maps").read_text().splitlines()
    loaded = {line.split(maxsplit=5)[-1] for line in lines}
    for name in CUDA_LIBRARIES:
        if any(f"/{name}" in path and path != str(location / name) for path in loaded):
            raise FerroError(
                f"{name} is already loaded into this process: activate the simulated GPU before "
                "anything that uses CUDA is imported"
            )


@cache
def load() -> ctypes.CDLL:
    """Loads all libraries, visible to later ones. Returns the driver with its control functions."""
    location = folder()
    check_free(location)
    handles = [ctypes.CDLL(str(location / name), mode=ctypes.RTLD_GLOBAL) for name in LIBRARIES]
    _bundled.stand_in(location)
    driver = handles[0]
    text, u64 = ctypes.c_char_p, ctypes.c_uint64
    buffer = [ctypes.c_char_p, ctypes.c_size_t]
    declarations: dict[str, tuple[object, list[object]]] = {
        "ferro_sim_start": (ctypes.c_int, [text]),
        "ferro_sim_last_error": (text, []),
        "ferro_sim_sharing": (ctypes.c_size_t, [*buffer]),
        "ferro_sim_counters": (ctypes.c_size_t, [*buffer]),
        "ferro_sim_reset_counters": (None, []),
        "ferro_sim_kernels": (ctypes.c_size_t, [*buffer]),
        "ferro_sim_report": (ctypes.c_size_t, [ctypes.c_int, *buffer]),
        "ferro_sim_add_fault": (ctypes.c_int, [text, text, u64, ctypes.c_int]),
        "ferro_sim_clear_faults": (None, []),
        "ferro_sim_drain": (None, []),
        "ferro_sim_pending": (u64, []),
        "ferro_sim_unsupported_count": (ctypes.c_size_t, []),
        "ferro_sim_unsupported_name": (text, [ctypes.c_size_t]),
    }
    for name, (result, arguments) in declarations.items():
        function = getattr(driver, name)
        function.restype = result
        function.argtypes = arguments
    return driver


def text_of(fill: Callable[[ctypes.Array[ctypes.c_char] | None, int], int]) -> str:
    """Returns the text that a control function writes into a buffer."""
    # Another thread may make the text grow between two calls.
    size = 0
    while True:
        buffer = ctypes.create_string_buffer(size + 1)
        needed = fill(buffer, size + 1)
        if needed <= size:
            return buffer.value.decode()
        size = needed
