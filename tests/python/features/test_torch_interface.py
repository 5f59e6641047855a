"""The allocator interface as C++ programs call it, compared with native, in both layouts."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.python.probes import build_probe
from tests.python.torch_programs import Result, checks_of, simulated


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_probe("interface_probe.cpp", tmp_path_factory.mktemp("probe"))


@cache
def outcomes(allocator: str, library: Path) -> Result:
    return simulated("features_interface.py", allocator, str(library), memory="1GiB")


@pytest.mark.parametrize("allocator", ["ferro", "segments"])
@pytest.mark.parametrize("name", checks_of("features_interface.py"))
def test_as_native(probe: Path, name: str, allocator: str) -> None:
    found, native = outcomes(allocator, probe)[name], outcomes("native", probe)[name]
    assert "error" not in found, found["error"]
    assert "error" not in native, native["error"]
    assert found["value"] == native["value"]
