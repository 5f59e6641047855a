"""The processes that use the GPU in the message of a failed allocation, from NVML if it exists."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import RunSimulated

FAIL = """\
import os
import ferro_alloc
ferro_alloc.install()
import torch
try:
    torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    print(str(error).split(" is free. ")[1].split("Of the allocated memory")[0].replace(
        str(os.getpid()), "SELF"))
"""

# An NVML with one device and three processes, one of which hides its use. Its first answer requests
# a longer list.
NVML = """\
#include <string.h>
#include <unistd.h>
struct process { unsigned pid; unsigned long long used; unsigned gpu, compute; };
int nvmlInit_v2(void) { return INIT; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  *device = (void*)1;
  return strchr(id, ':') != 0 ? 0 : 2;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, struct process* list) {
  unsigned given = *count;
  (void)device;
  *count = 9;
  if (given < 9) return 7;
  memset(list, 0, 9 * sizeof *list);
  for (int i = 0; i < 9; ++i) list[i].used = ~0ULL;
  list[0].pid = 4711; list[0].used = 1536ULL << 20;
  list[1].pid = (unsigned)getpid(); list[1].used = 300ULL << 20;
  return 0;
}
"""


def fake_nvml(folder: Path, init: int, text: str = NVML) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build a stand-in for NVML with")
    source = folder / "nvml.c"
    source.write_text(text)
    target = folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", f"-DINIT={init}"]
    command = [compiler, *flags, str(source), "-o", str(target)]
    subprocess.run(command, check=True)


def lines_with(folder: Path, run: RunSimulated) -> str:
    # It must precede the simulated GPU's, which has the same name.
    preload = {"LD_PRELOAD": str(folder / "libnvidia-ml.so.1")}
    return run(FAIL, env=preload, memory="1GiB").stdout


def test_each_process_has_its_line(tmp_path: Path, run_simulated: RunSimulated) -> None:
    fake_nvml(tmp_path, init=0)
    assert lines_with(tmp_path, run_simulated).strip() == (
        "Process 4711 has 1.50 GiB memory in use. "
        "Including non-PyTorch memory, this process has 300.00 MiB memory in use."
    )


@pytest.mark.long
def test_an_nvml_that_fails_is_left_out(tmp_path: Path, run_simulated: RunSimulated) -> None:
    fake_nvml(tmp_path, init=9)
    assert lines_with(tmp_path, run_simulated) == "\n"


def test_a_library_that_is_something_else_is_left_out(
    tmp_path: Path, run_simulated: RunSimulated
) -> None:
    fake_nvml(tmp_path, init=0, text="int something_else;")
    assert lines_with(tmp_path, run_simulated) == "\n"
