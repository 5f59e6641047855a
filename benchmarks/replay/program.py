"""Runs the program that replays a recorded trace, and reads its output."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.processes import ROOT
from tools import patience

TRACES = ROOT / "benchmarks" / "replay" / "traces"

# Peak reserved / peak allocated on an H100 where the traces were recorded: native, expandable.
ON_GPU: Mapping[str, tuple[float, float]] = {
    "full_varlen": (1.552, 1.098),
    "moe": (1.269, 1.033),
    "offload": (1.362, 1.145),
    "generate": (1.303, 1.081),
}
# For fsdp_like, memory that waits for another stream counts as used.
ON_GPU_ACTIVE: Mapping[str, tuple[float, float]] = {"fsdp_like": (1.138, 1.096)}

# `Event` of replay.cpp.
EVENT = np.dtype(
    [("size", "<i8"), ("block", "<i4"), ("kind", "u1"), ("stream", "u1"), ("deferred", "<u2")]
)
ALLOCATED, FREE_REQUESTED, FREE_COMPLETED = 0, 1, 2


def to_events(trace: Mapping[str, NDArray[Any]], limit: int | None) -> NDArray[Any]:
    """The arrays of a recorded trace as an array of `EVENT`; its first `limit` events."""
    kind, block = trace["kind"][:limit], trace["id"][:limit]
    events = np.zeros(len(kind), EVENT)
    events["size"], events["block"], events["kind"] = trace["size"][:limit], block, kind
    events["stream"] = trace["stream"][:limit]
    # A block without other uses was free as soon as its free was requested.
    at_once = np.zeros(len(kind), bool)
    at_once[:-1] = (kind[1:] == FREE_COMPLETED) & (block[1:] == block[:-1])
    events["deferred"] = (kind == FREE_REQUESTED) & ~at_once
    return events


def replay(
    program: Path, name: str, page_mib: int, limit: int | None, passes: int = 1
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, np.load(TRACES / f"{name}.npz") as trace:
        path = Path(folder) / "trace"
        to_events(trace, limit).tofile(path)
        done = patience.run([program, path, str(page_mib), str(passes)])
    if done.returncode != 0:
        raise SystemExit(f"{name}: {done.stderr.strip()}")
    result: dict[str, Any] = json.loads(done.stdout)
    result["trace"] = name
    return result


def driver_ms(calls: Mapping[str, Mapping[str, float]]) -> float:
    return sum(call["microseconds"] for call in calls.values()) / 1e3


def calls_of(result: Mapping[str, Any], name: str) -> int:
    return int(result["calls"].get(name, {"calls": 0})["calls"])
