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
    {"blocks", "streams", "sharing"},
    {"pages"},
    {"heap"},
    {"device"},
)
ADAPTER_FLOORS = (
    {"torch"},
    {"history", "sharing", "fallback"},
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


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CSRC)))
def test_includes_point_down_only(path: Path) -> None:
    here = layer_of(path.relative_to(CSRC).as_posix())
    for include in filter(own, includes(path)):
        if here in BESIDE:
            assert include.startswith(BESIDE[here]), f"{here} includes {include}"
            continue
        there = layer_of(include)
        assert there in LAYERS, f"{include} is of no layer that {here} may know"
        assert LAYERS.index(there) <= LAYERS.index(here), f"{here} includes {include} above it"


Floors = tuple[set[str], ...]


def check_floors(path: Path, house: str, floors: Floors) -> None:
    """`path` includes of `house` only its own room and rooms of lower floors."""

    def room_of(file: str) -> str:
        room, _, rest = file.removeprefix(house).partition("/")
        return room if rest else ""

    def floor_of(room: str) -> int:
        return next(floor for floor, rooms in enumerate(floors) if room in rooms)

    here = room_of(path.relative_to(CSRC).as_posix())
    for include in includes(path):
        if include.startswith(house):
            there = room_of(include)
            assert there == here or floor_of(there) < floor_of(here), f"{here} includes {include}"


def in_house(house: str) -> pytest.MarkDecorator:
    paths = [path for path in SOURCES if path.relative_to(CSRC).as_posix().startswith(house)]
    return pytest.mark.parametrize("path", paths, ids=lambda path: str(path.relative_to(CSRC)))


@in_house("ferro/core/")
def test_rooms_of_the_core_know_lower_floors_only(path: Path) -> None:
    check_floors(path, "ferro/core/", CORE_FLOORS)


@in_house("ferro/adapter/")
def test_rooms_of_the_adapter_know_lower_floors_only(path: Path) -> None:
    check_floors(path, "ferro/adapter/", ADAPTER_FLOORS)


@in_house("sim/")
def test_rooms_of_the_simulated_gpu_know_lower_floors_only(path: Path) -> None:
    check_floors(path, "sim/", SIM_FLOORS)


@in_house("sim/libraries/")
def test_libraries_of_the_simulated_gpu_know_lower_floors_only(path: Path) -> None:
    check_floors(path, "sim/libraries/", LIBRARY_FLOORS)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CSRC)))
def test_outside_libraries_stay_in_their_layers(path: Path) -> None:
    here = layer_of(path.relative_to(CSRC).as_posix())
    for include in includes(path):
        if re.match(r"(cuda|cublas|driver_types|vector_types)\w*\.h", include):
            allowed = {"driver", "sim"}
        elif include.startswith(("c10/", "ATen/", "torch/headeronly/")):
            allowed = {"adapter", "values"}
        elif include.startswith(("torch/", "pybind11/", "Python.h")):
            allowed = {"python", "values"}
        else:
            continue
        assert here in allowed, f"{here} includes {include}, which only {allowed} may"


def test_the_layers_were_found() -> None:
    found = {layer_of(path.relative_to(CSRC).as_posix()) for path in SOURCES}
    assert found == {*LAYERS, *BESIDE}
