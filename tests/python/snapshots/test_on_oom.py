"""The report that is written when memory runs out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunSimulated
from tests.programs import find_program

FAILS = """\
import torch
import ferro_alloc
ferro_alloc.install()
kept = torch.empty(1 << 20, device="cuda")
try:
    torch.empty(1 << 40, device="cuda")
except torch.OutOfMemoryError as error:
    print(error.ferro_alloc.verdict)
"""


# A request that fails empties the cache of the previous allocator, under a lock that threads also
# take while they hold Python's lock. When two threads failed at a time, and one of them took a
# snapshot, both waited forever.
RELIEVES = """\
import torch
import ferro_alloc
early = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
ferro_alloc.install()
torch.cuda.memory._record_memory_history(stacks="python")
del early  # into the cache of the allocator before
kept = torch.empty(900 << 20, dtype=torch.uint8, device="cuda")
traces = torch.cuda.memory._snapshot()["device_traces"]
freed = [entry for trace in traces for entry in trace if entry["action"] == "segment_free"]
given = [entry for trace in traces for entry in trace if entry["action"] == "alloc"]
print(["frames" in entry for entry in freed], "frames" in given[-1])
"""


def test_python_frames_are_collected_without_the_climb_lock(run_simulated: RunSimulated) -> None:
    assert run_simulated(RELIEVES, memory="1GiB").stdout == "[False] True\n"


@pytest.mark.parametrize(
    "allocator", [pytest.param("native", marks=pytest.mark.long), "ferro_alloc", "late"]
)
def test_report_is_written_once_when_memory_runs_out(
    allocator: str, run_simulated: RunSimulated, tmp_path: Path
) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    done = run_simulated("out_of_memory_reports.py", allocator, str(folder), memory="1GiB")
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert "there is no folder" in seen["missing folder"]
    assert "it is a folder; name a file" in seen["a folder"]
    assert (seen["before CUDA"], seen["initialised"]) == ("asked", False)
    assert seen["nothing yet"] == ["taken.html"]
    own = f"of-{seen['pid']}.html"
    assert seen["written"] == ["first.html", own, "taken.html"]
    assert seen["again"] == [own, "taken.html"]
    assert seen["threads"] == [own, "taken.html", "threads.html"]
    assert seen["captured"] == ["capture.html", own, "taken.html", "threads.html"]
    # The error is that of the allocator.
    assert seen["error"].startswith("CUDA out of memory. Tried to allocate 900.00 MiB.")
    assert seen["in a capture"] == "CUDA out of memory."
    assert re.search(r"not written: .*taken\.html.* Is a directory", done.stderr)
    assert done.stderr.count("the report is in") == 4
    text = (folder / own).read_text()
    assert "GPU memory when a request for 0.88 GiB on device 0 failed" in text
    lines = find_program("out_of_memory_reports.py").read_text().splitlines()
    (line,) = (n for n, text in enumerate(lines, 1) if "torch.empty(700" in text)
    assert f"snapshots/out_of_memory_reports.py:{line} hold_most" in text


def test_environment_requests_it(run_simulated: RunSimulated, tmp_path: Path) -> None:
    path = tmp_path / "memory.html"
    env = {"FERRO_ALLOC_REPORT_ON_OOM": str(path)}
    done = run_simulated(FAILS, env=env, gpu="h100")
    assert "CAPACITY" in done.stdout
    assert path.read_text().startswith("<!DOCTYPE html>")
    path.unlink()
    env = {"FERRO_ALLOC_REPORT_ON_OOM": str(tmp_path / "missing" / "memory.html")}
    done = run_simulated(FAILS, env=env, gpu="h100")
    assert "FERRO_ALLOC_REPORT_ON_OOM: the report cannot be written" in done.stderr
    assert "CAPACITY" in done.stdout
    assert "html" not in run_simulated(FAILS, gpu="h100").stderr
