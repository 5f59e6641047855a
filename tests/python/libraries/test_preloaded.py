"""Preloaded libraries see memory that is allocated without pages, as under native."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunSimulated
from tests.programs import ROOT


def build(folder: Path, *options: str) -> dict[str, str]:
    """The environment that preloads the library."""
    library = folder / "preloaded.so"
    source = ROOT / "tests" / "cpp" / "preload" / "preloaded.cpp"
    words = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", *options, "-o", str(library)]
    subprocess.run([*words, str(source), "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


@pytest.mark.parametrize(
    "allocator", [pytest.param("native", marks=pytest.mark.long), "segments", "pages"]
)
def test_plain_memory_comes_from_the_runtime(
    allocator: str, run_simulated: RunSimulated, tmp_path: Path
) -> None:
    done = run_simulated("preloaded.py", allocator, env=build(tmp_path))
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    once = [1, 1]
    assert found["plain"] == ([0, 0] if allocator == "pages" else once)
    assert found["not split"] == once
    assert found["switched off"] == once
    assert found["too much"] == "out of memory"


REFUSED = """\
import ferro_alloc
import torch
x = torch.arange(8).cuda()
try:
    ferro_alloc.install()
except ferro_alloc.FerroError as error:
    print(error)
print(torch.cuda.get_allocator_backend(), ferro_alloc.is_installed(), x.tolist())
ferro_alloc.install(ferro_alloc.Config(layout="segments"))
print(torch.cuda.get_allocator_backend(), x.tolist())
"""


def test_a_preloaded_memory_saver_refuses_pages(
    run_simulated: RunSimulated, tmp_path: Path
) -> None:
    done = run_simulated(REFUSED, env=build(tmp_path, "-DSAVER"))
    said, state, later = done.stdout.splitlines()
    assert said.startswith("torch_memory_saver is preloaded (LD_PRELOAD)")
    assert "import torch_memory_saver from ferro_alloc.memory_saver" in said
    assert "layout='segments' (FERRO_ALLOC_CONF=layout:segments)" in said
    assert state == "native False [0, 1, 2, 3, 4, 5, 6, 7]"
    assert later == "ferro_alloc [0, 1, 2, 3, 4, 5, 6, 7]"


STARTED = """\
from ferro_alloc._startup import begin
begin()
import torch
x = torch.arange(8).cuda()
print(torch.cuda.get_allocator_backend(), x.tolist())
"""


@pytest.mark.parametrize("value", ["1", pytest.param("strict", marks=pytest.mark.long)])
def test_a_preloaded_memory_saver_at_the_start(
    value: str, run_simulated: RunSimulated, tmp_path: Path
) -> None:
    env = {**build(tmp_path, "-DSAVER"), "FERRO_ALLOC": value}
    done = run_simulated(STARTED, env=env, check=False)
    assert "import torch_memory_saver from ferro_alloc.memory_saver" in done.stderr
    if value == "1":
        # The program goes on with native, whose memory the saver can pause.
        assert done.stdout.split(maxsplit=1)[0] == "native"
    else:
        assert done.returncode != 0
        assert done.stdout == ""
