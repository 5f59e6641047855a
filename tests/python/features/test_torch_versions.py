"""Requirements of later versions of torch, compared with native; skipped with older ones."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import setup as ferro_setup
from ferro_alloc import _load
from tests.python.probes import build_probe
from tests.python.torch_programs import Result, assert_as_native, checks_of, simulated


@cache
def outcomes(allocator: str) -> Result:
    return simulated("features_versions.py", allocator, memory="1GiB")


@pytest.mark.parametrize("name", checks_of("features_versions.py"))
def test_as_native(name: str) -> None:
    assert_as_native(outcomes("ferro")[name], outcomes("native")[name])


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch, _ = _load.running_torch()
    if ferro_setup.minor_version(torch) < (2, 12):
        pytest.skip("torch 2.12 introduced it")
    return build_probe("allocator_probe.cpp", tmp_path_factory.mktemp("probe"))


@pytest.mark.parametrize("name", checks_of("features_probe.py"))
def test_from_cpp_as_native(probe: Path, name: str) -> None:
    found, native = (probed(allocator, probe)[name] for allocator in ("ferro", "native"))
    assert_as_native(found, native)


@cache
def probed(allocator: str, library: Path) -> Result:
    return simulated("features_probe.py", allocator, str(library), memory="1GiB")
