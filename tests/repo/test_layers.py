"""The layers of the C++ code: includes point down only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"
LAYERS = ("base", "driver", "core", "graph", "adapter", "python")
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)
SOURCES = sorted([*CSRC.rglob("*.h"), *CSRC.rglob("*.cpp")])

# The simulated GPU stands beside the house: it fills the driver's table and shares the basics.
SIM_MAY_INCLUDE = ("ferro/base/", "ferro/driver/cuda_api.h", "sim/")


def layer_of(path: str) -> str:
    """`ferro/core/heap.h` is of layer core, `python/module.cpp` of python, `sim/...` of sim."""
    parts = path.split("/")
    return parts[1] if parts[0] == "ferro" else parts[0]


def includes(path: Path) -> list[str]:
    return INCLUDE.findall(path.read_text())


def own(include: str) -> bool:
    return include.startswith(("ferro/", "python/", "sim/"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CSRC)))
def test_includes_point_down_only(path: Path) -> None:
    here = layer_of(path.relative_to(CSRC).as_posix())
    for include in filter(own, includes(path)):
        if here == "sim":
            assert include.startswith(SIM_MAY_INCLUDE), f"sim includes {include}"
            continue
        there = layer_of(include)
        assert there in LAYERS, f"{include} is of no layer that {here} may know"
        assert LAYERS.index(there) <= LAYERS.index(here), f"{here} includes {include} above it"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CSRC)))
def test_outside_libraries_stay_in_their_layers(path: Path) -> None:
    here = layer_of(path.relative_to(CSRC).as_posix())
    for include in includes(path):
        if re.match(r"(cuda|cublas|driver_types|vector_types)\w*\.h", include):
            allowed = {"driver", "sim"}
        elif include.startswith(("c10/", "ATen/", "torch/headeronly/")):
            allowed = {"adapter"}
        elif include.startswith(("torch/", "pybind11/", "Python.h")):
            allowed = {"python"}
        else:
            continue
        assert here in allowed, f"{here} includes {include}, which only {allowed} may"


def test_the_layers_were_found() -> None:
    found = {layer_of(path.relative_to(CSRC).as_posix()) for path in SOURCES}
    assert found == {*LAYERS, "sim"}
