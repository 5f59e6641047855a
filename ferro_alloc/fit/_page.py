"""The page of simulated runs: the report of their snapshots, with the verdict's kinds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferro_alloc._errors import FerroError
from ferro_alloc.fit._recording import MOST_EVENTS, Recording
from ferro_alloc.fit._report import KIND_NAMES

if TYPE_CHECKING:
    # The import is slow.
    from ferro_alloc.snapshots._trace import Trace

View = dict[str, Any]


class KindsOfBlocks:
    """Returns the kinds of the blocks in a trace, from those of all blocks at each address.

    The trace has the last events, so its last block at an address is the last that was recorded
    there.
    """

    def __init__(self, by_address: Mapping[int, Sequence[str]]) -> None:
        self._by_address = by_address

    def __call__(self, trace: Trace) -> list[str]:
        taken: dict[int, int] = {}
        found = [KIND_NAMES["other"]] * len(trace.blocks)
        order = sorted(range(len(found)), key=trace.blocks.born.__getitem__, reverse=True)
        for block in order:
            address = trace.blocks.address[block]
            kinds = self._by_address.get(address, ())
            taken[address] = taken.get(address, 0) + 1
            if taken[address] <= len(kinds):
                found[block] = KIND_NAMES[kinds[-taken[address]]]
        return found


def views_of(recording: Recording, label: str = "") -> list[View]:
    """The data of the page for one run; empty if the program used no CUDA memory."""
    # Imported here, because the import is slow.
    from ferro_alloc.snapshots._report import views

    if recording.snapshot is None:
        return []
    return views(
        recording.snapshot,
        label=label,
        pools=recording.pools,
        kinds_of=lambda trace: KindsOfBlocks(recording.kinds_by_address(trace.device))(trace),
        kinds=list(KIND_NAMES.values()),
    )


def save_views(path: Path, recording: Recording, label: str) -> None:
    """Writes the views of this run into a file, for the page of several runs."""
    path.write_text(json.dumps(views_of(recording, label)))


def load_views(path: Path) -> list[View]:
    """Empty if the run saved none."""
    return list(json.loads(path.read_text())) if path.exists() else []


def write_page(path: Path, views: Sequence[View], title: str, remarks: Sequence[str]) -> str:
    """Writes the page and returns a line about it; the line says why if there is none. `remarks`
    are lines below the title."""
    from ferro_alloc.snapshots._report import write_views

    if not views:
        return "no report: the program used no CUDA memory"
    try:
        write_views(path, views, title, [each.removeprefix("  ") for each in remarks])
    except FerroError as error:
        return f"no report: {error}"
    if max(view["events"] for view in views) >= MOST_EVENTS:
        return f"report: {path}, of the last {MOST_EVENTS:,} events"
    return f"report: {path}"
