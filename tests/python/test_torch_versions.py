"""What later versions of torch ask of an allocator, as native does it; skipped by older ones."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.conftest import PROGRAMS
from tests.python.torch_programs import Result, simulated

PROGRAM = "features_versions.py"
CHECKS = re.findall(r"^@since\(\d+\)\ndef (\w+)", (PROGRAMS / PROGRAM).read_text(), re.MULTILINE)


@cache
def outcomes(allocator: str) -> Result:
    return simulated(PROGRAM, allocator, memory="1GiB")


@pytest.mark.parametrize("name", CHECKS)
def test_as_native(name: str) -> None:
    found = outcomes("ferro")[name]
    if "absent" in found:
        pytest.skip(found["absent"])
    native = outcomes("native")[name]
    assert "error" not in found, found["error"]
    assert "error" not in native, native["error"]
    assert found["value"] == native["value"]
