"""numba's kernels on the simulated GPU, compared with native."""

from __future__ import annotations

import pytest

from tests.python.client_sides import assert_no_more_memory, run_sides

pytest.importorskip("numba.cuda", reason="numba is not installed: make test-clients")


def test_kernels_over_tensors() -> None:
    sides = run_sides("client_numba.py")
    assert sides["native"].value == {"shape": [1 << 20], "copied": True, "same": True}
    for name, side in sides.items():
        assert side.value == sides["native"].value, name
    assert_no_more_memory(sides)
