"""The layers of the C++ code: includes point down only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"
LAYERS = ("base", "driver", "core", "graph", "adapter", "python")
# The rooms of the core and of the adapter, lowest floor first; rooms of one floor do not know
# each other.
CORE_FLOORS = (
    {"types"},
    {"policy", "stats"},
    {"blocks", "streams", "ipc"},
    {"pages"},
    {"heap"},
    {"device"},
)
ADAPTER_FLOORS = (
    {"torch"},
    {"history", "ipc", "fallback"},
    {"allocator"},
    {"switching", "graphs", "peak"},
)
# The rooms of the simulated GPU. What others include stands at its top, outside the rooms.
SIM_FLOORS = (
    {"settings", "instruments"},
    {"memory", "streams"},
    {"graphs"},
    {"machine"},
    {"driver"},
    {"libraries"},
    {""},
)
# Its libraries: each knows itself and those below it.
LIBRARY_FLOORS = ({"names"}, {"cuda"}, {"cudart", "cublas_lt", "nccl", "nvml"}, {"cublas", "cudnn"})
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)
SOURCES = sorted([*CSRC.rglob("*.h"), *CSRC.rglob("*.cpp")])

# The simulated GPU stands beside the house: it fills the driver's table and shares the basics.
SIM_MAY_INCLUDE = ("ferro/base/", "ferro/driver/cuda_api.h", "sim/")
# What computes values for it stands between it and torch.
VALUES_MAY_INCLUDE = ("sim/control.h", "values/")
BESIDE = {"sim": SIM_MAY_INCLUDE, "values": VALUES_MAY_INCLUDE}


def layer_of(path: str) -> str:
    """`ferro/core/heap/heap.h` is of layer core, `sim/machine/machine.h` of sim."""
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
    if here in BESIDE:
        return include.startswith(BESIDE[here])
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
    ("house", "floors"),
    [
        ("ferro/core/", CORE_FLOORS),
        ("ferro/adapter/", ADAPTER_FLOORS),
        ("sim/", SIM_FLOORS),
        ("sim/libraries/", LIBRARY_FLOORS),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_folders_include_lower_floors_only(house: str, floors: tuple[set[str], ...]) -> None:
    """Each file includes of its house only its own folder and those of lower floors."""

    def folder_of(file: str) -> str:
        folder, _, rest = file.removeprefix(house).partition("/")
        return folder if rest else ""

    floor_of = {folder: floor for floor, folders in enumerate(floors) for folder in folders}
    files = below(house)
    assert {folder_of(named(path)) for path in files} <= set(floor_of)
    wrong = []
    for path in files:
        here = folder_of(named(path))
        for include in includes(path):
            there = folder_of(include)
            if include.startswith(house) and there != here and floor_of[there] >= floor_of[here]:
                wrong.append(f"{named(path)} includes {include}")
    assert not wrong, "\n".join(wrong)


OUTSIDE = {
    r"(cuda|cublas|driver_types|vector_types)\w*\.h": {"driver", "sim"},
    r"(c10|ATen|torch/headeronly)/": {"adapter", "values"},
    r"(torch|pybind11)/|Python\.h": {"python", "values"},
}
"""Which layers may include what of others; the first pattern that matches counts."""


def test_outside_libraries_stay_in_their_layers() -> None:
    wrong = []
    for path in SOURCES:
        for include in includes(path):
            allowed = next((OUTSIDE[p] for p in OUTSIDE if re.match(p, include)), None)
            if allowed is not None and layer_of(named(path)) not in allowed:
                wrong.append(f"{named(path)} includes {include}, which only {allowed} may")
    assert not wrong, "\n".join(wrong)


def test_the_layers_were_found() -> None:
    assert {layer_of(named(path)) for path in SOURCES} == {*LAYERS, *BESIDE}
