"""The layers of the C++ code: includes point down only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"
LAYERS = ("base", "driver", "core", "graph", "adapter", "python")
# The directories of the core and of the adapter, lowest level first. Those of one level do not
# include each other.
CORE_LEVELS = (
    {"types"},
    {"policy", "stats"},
    {"blocks", "streams", "ipc"},
    {"pages"},
    {"heap"},
    {"device"},
)
ADAPTER_LEVELS = (
    {"torch"},
    {"history", "ipc", "fallback"},
    {"allocator"},
    {"switching", "graphs", "peak"},
)
# The directories of the simulated GPU. Its public headers are at its top.
SIM_LEVELS = (
    {"settings", "instruments"},
    {"memory"},
    {"streams"},
    {"graphs"},
    {"machine"},
    {"driver"},
    {"libraries"},
    {""},
)
# Its libraries: each includes itself and those below it.
LIBRARY_LEVELS = (
    {"names"},
    {"cuda"},
    {"cudart", "cublas_lt", "nccl", "nvml"},
    {"cublas", "cudnn", "cufft", "cusparse", "cusolver"},
)
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)
SOURCES = sorted([*CSRC.rglob("*.h"), *CSRC.rglob("*.cpp")])

# The simulated GPU is standalone: it provides the driver's table and shares the basics.
SIM_MAY_INCLUDE = ("ferro/base/", "ferro/driver/cuda_api.h", "sim/")
# The code that computes its values includes only its control functions and torch.
VALUES_MAY_INCLUDE = ("sim/control.h", "values/")
STANDALONE = {"sim": SIM_MAY_INCLUDE, "values": VALUES_MAY_INCLUDE}


def layer_of(path: str) -> str:
    """The layer of `ferro/core/heap/heap.h` is core, that of `sim/machine/machine.h` is sim."""
    parts = path.split("/")
    return parts[1] if parts[0] == "ferro" else parts[0]


def includes(path: Path) -> list[str]:
    return INCLUDE.findall(path.read_text())


def own(include: str) -> bool:
    return include.startswith(("ferro/", "python/", "sim/", "values/"))


def named(path: Path) -> str:
    return path.relative_to(CSRC).as_posix()


def below(folder: str) -> list[Path]:
    return [path for path in SOURCES if named(path).startswith(folder)]


def may_include(here: str, include: str) -> bool:
    if here in STANDALONE:
        return include.startswith(STANDALONE[here])
    there = layer_of(include)
    return there in LAYERS and LAYERS.index(there) <= LAYERS.index(here)


def test_includes_point_down_only() -> None:
    wrong = [
        f"{named(path)} includes {include}"
        for path in SOURCES
        for include in filter(own, includes(path))
        if not may_include(layer_of(named(path)), include)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("root", "levels"),
    [
        ("ferro/core/", CORE_LEVELS),
        ("ferro/adapter/", ADAPTER_LEVELS),
        ("sim/", SIM_LEVELS),
        ("sim/libraries/", LIBRARY_LEVELS),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_directories_include_lower_levels_only(root: str, levels: tuple[set[str], ...]) -> None:
    """Below `root`, each file includes only its own directory and those of lower levels."""

    def folder_of(file: str) -> str:
        folder, _, rest = file.removeprefix(root).partition("/")
        return folder if rest else ""

    level_of = {folder: level for level, folders in enumerate(levels) for folder in folders}
    files = below(root)
    assert {folder_of(named(path)) for path in files} <= set(level_of)
    wrong = []
    for path in files:
        here = folder_of(named(path))
        for include in includes(path):
            there = folder_of(include)
            if include.startswith(root) and there != here and level_of[there] >= level_of[here]:
                wrong.append(f"{named(path)} includes {include}")
    assert not wrong, "\n".join(wrong)


OUTSIDE = {
    r"(cuda|cublas|driver_types|vector_types)\w*\.h": {"driver", "sim"},
    r"(c10|ATen|torch/headeronly)/": {"adapter", "values"},
    r"(torch|pybind11)/|Python\.h": {"python", "values"},
}
"""The layers that may include other libraries, by pattern; the first match counts."""


def test_outside_libraries_stay_in_their_layers() -> None:
    wrong = []
    for path in SOURCES:
        for include in includes(path):
            allowed = next((OUTSIDE[p] for p in OUTSIDE if re.match(p, include)), None)
            if allowed is not None and layer_of(named(path)) not in allowed:
                wrong.append(f"{named(path)} includes {include}, which only {allowed} may")
    assert not wrong, "\n".join(wrong)


def test_the_layers_were_found() -> None:
    assert {layer_of(named(path)) for path in SOURCES} == {*LAYERS, *STANDALONE}
