"""The driver's contract, which the simulated GPU follows, on the real driver."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import setup as ferro_setup
from tests import programs
from tests.programs import ROOT

pytestmark = pytest.mark.gpu


def test_the_real_driver_keeps_the_contract(tmp_path: Path) -> None:
    cmake = shutil.which("cmake")
    assert cmake is not None, "cmake is needed to build the contract suite"
    generator = ["-GNinja"] if shutil.which("ninja") else []
    include = ferro_setup.cuda_include(13)
    tree, jobs = str(tmp_path), str(os.cpu_count())
    configure = [cmake, "-S", str(ROOT), "-B", tree, *generator, f"-DFERRO_CUDA_INCLUDE={include}"]
    build = [cmake, "--build", tree, "--target", "contract_runner", "-j", jobs]
    for command in (configure, build, [str(tmp_path / "tests" / "cpp" / "contract_runner")]):
        done = programs.run(command)
        assert done.returncode == 0, f"{command[0]}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
