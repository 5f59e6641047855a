"""Replays a trace under allocators, each in a separate process on a simulated GPU."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ferro_alloc._errors import FerroError
from ferro_alloc.snapshots._plan import Plan, plan
from ferro_alloc.snapshots._trace import Allocator, Trace

PLENTY = 4 << 40
"""Memory of a simulated GPU on which no replay runs out, in bytes."""
_OURS_ALONE = ("expandable_segments", "backend")
_SWITCHES = ("FERRO_ALLOC", "FERRO_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
# Each replay uses one core.
_AT_ONCE = max(min(os.cpu_count() or 1, 4), 1)


@dataclass(frozen=True)
class Run:
    """One requested replay."""

    allocator: Allocator
    settings: str = ""
    """Settings of PYTORCH_CUDA_ALLOC_CONF, except expandable_segments."""
    memory_bytes: int = PLENTY


@dataclass(frozen=True)
class Outcome:
    """The result. `failed_at_event` is the event that ran out of memory; -1: it completed."""

    peak_reserved_bytes: int
    peak_active_bytes: int
    reserved_at_start_bytes: int
    cache_flushes: int
    """How often the allocator ran short, emptied its cache and tried again."""
    failed_at_event: int
    samples: list[tuple[int, int]]
    """Some hundred pairs of an event and the reserved bytes after it."""

    @property
    def fits(self) -> bool:
        return self.failed_at_event < 0


def kept_settings(settings: str) -> str:
    """The program's settings that a replay keeps: all except the choice of the allocator."""
    pairs = (pair.strip() for pair in settings.split(","))
    return ",".join(p for p in pairs if p and p.partition(":")[0].strip() not in _OURS_ALONE)


def replay(trace: Trace, runs: Sequence[Run]) -> list[Outcome]:
    """Returns the outcomes in the order of the runs. Takes two seconds each, plus one for a million
    events."""
    with tempfile.TemporaryDirectory(prefix="ferro-replay-") as folder:
        files: dict[Allocator, Path] = {}
        for run in runs:
            if run.allocator not in files:
                files[run.allocator] = Path(folder) / run.allocator
                steps: Plan = plan(trace, run.allocator)
                files[run.allocator].write_bytes(pickle.dumps(steps, protocol=5))
        with ThreadPoolExecutor(_AT_ONCE) as workers:
            return list(workers.map(lambda run: _run(run, files[run.allocator]), runs))


def _run(run: Run, path: Path) -> Outcome:
    env = {key: value for key, value in os.environ.items() if key not in _SWITCHES}
    expandable = f"expandable_segments:{run.allocator == 'expandable'}"
    if run.allocator != "ferro_alloc":
        env["PYTORCH_CUDA_ALLOC_CONF"] = ",".join(filter(None, (run.settings, expandable)))
    elif run.settings:
        env["PYTORCH_CUDA_ALLOC_CONF"] = run.settings
    # The package may be a checkout that is only in this process's path.
    package = str(Path(__file__).resolve().parents[2])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (package, env.get("PYTHONPATH"))))
    words = ["-m", "ferro_alloc.snapshots._child", str(path), run.allocator, f"{run.memory_bytes}b"]
    done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise FerroError(f"the replay under {run.allocator} failed: {last}")
    found = json.loads(done.stdout.splitlines()[-1])
    found["samples"] = [(event, reserved) for event, reserved in found["samples"]]
    return Outcome(**found)
