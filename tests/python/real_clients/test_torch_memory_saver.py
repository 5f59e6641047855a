"""torch_memory_saver in its modes `torch` and `preload`, compared with native."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from ferro_alloc.sim import _library
from tests.conftest import RunProgram
from tests.python.client_sides import Side, assert_no_more_memory, run_sides

pytest.importorskip(
    "torch_memory_saver", reason="torch_memory_saver is not installed: make test-clients"
)


def preloaded() -> dict[str, str]:
    """The environment that `torch_memory_saver.configure_subprocess()` gives a program."""
    spec = importlib.util.find_spec("torch_memory_saver")
    assert spec is not None
    assert spec.origin is not None
    packages = Path(spec.origin).parents[1]
    (hook,) = packages.glob("torch_memory_saver_hook_mode_preload_cu13.*.so")
    # The hook asks for the driver before the simulated GPU is activated.
    return {"LD_PRELOAD": str(hook), "LD_LIBRARY_PATH": str(_library.folder())}


def assert_slept(sides: dict[str, Side]) -> None:
    native = sides["native"].value
    assert native["freed"] == [[20, 30]] * 10
    assert native["intact"]
    assert native["addresses kept"]
    for name, side in sides.items():
        assert side.value == native, name
    assert_no_more_memory(sides)


def test_torch_mode() -> None:
    # With expandable segments in the environment it refuses to start.
    assert_slept(
        run_sides("client_memory_saver.py", "torch", allocators=("native", "pages", "segments"))
    )


def test_preload_mode_with_segments() -> None:
    sides = run_sides(
        "client_memory_saver.py", "preload", allocators=("native", "segments"), env=preloaded()
    )
    assert_slept(sides)


REFUSED = """\
import ferro_alloc.sim
ferro_alloc.sim.activate()
import torch, ferro_alloc
try:
    ferro_alloc.install()
except ferro_alloc.FerroError as error:
    print(error)
print(torch.cuda.get_allocator_backend(), ferro_alloc.is_installed())
ferro_alloc.install(ferro_alloc.Config(layout="segments"))
print(torch.cuda.get_allocator_backend())
"""


def test_preload_mode_with_pages_is_refused(run_program: RunProgram) -> None:
    said, state, later = run_program(REFUSED, env=preloaded()).stdout.splitlines()
    assert said.startswith("torch_memory_saver is preloaded (LD_PRELOAD)")
    assert "layout='segments' (FERRO_ALLOC_CONF=layout:segments)" in said
    assert state == "native False"
    assert later == "ferro_alloc"
