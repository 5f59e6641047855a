"""The page of a simulated run: the report of its snapshot, with the recorded kinds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ferro_alloc.fit._recording import MOST_EVENTS, Place, Recording, StackSum
from ferro_alloc.fit._report import KIND_NAMES

AUTOGRAD = "<autograd>"
"""The file name in frames of autograd nodes."""
# The report uses other words for two kinds.
_NAMES = {**KIND_NAMES, "libraries": "libraries", "graphs": "graphs and pools"}

Frame = Mapping[str, Any]


class KindsOfStacks:
    """Returns for a stack the kind of most bytes that were ever requested at its place."""

    def __init__(self, sums: Sequence[StackSum], skipped: Sequence[str]) -> None:
        found: dict[Place, Counter[str]] = defaultdict(Counter)
        for kind, place, size in sums:
            found[place][kind] += size
        self._kinds = {place: kinds.most_common(1)[0][0] for place, kinds in found.items()}
        self._skipped = tuple(skipped)

    def __call__(self, frames: Sequence[Frame]) -> str:
        node = ""
        if frames and frames[0]["filename"] == AUTOGRAD:
            node, frames = frames[0]["name"], frames[1:]
        for frame in frames:
            if not frame["filename"].startswith(self._skipped):
                own, innermost = ((f["filename"], f["line"]) for f in (frame, frames[0]))
                return _NAMES[self._kinds.get((*own, node, *innermost), "other")]
        return _NAMES["other"]


def write_page(path: Path, recording: Recording, title: str) -> str:
    """Writes the page and returns a line about it. Raises `FerroError` if it cannot be written."""
    # Imported here, because the import is slow.
    from ferro_alloc.snapshots import write

    if recording.snapshot is None:
        return "no report: the program used no CUDA memory"
    kinds = KindsOfStacks(recording.stack_sums(), recording.skipped)
    write(path, recording.snapshot, pools=recording.pools, title=title, kind_of=kinds)
    events = max((len(trace) for trace in recording.snapshot["device_traces"]), default=0)
    if events >= MOST_EVENTS:
        return f"report: {path}, of the last {MOST_EVENTS:,} events"
    return f"report: {path}"
