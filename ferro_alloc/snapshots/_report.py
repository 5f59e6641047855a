"""Writes the report: one file of HTML that contains the data of a snapshot and needs no network.

Numbers are stored as columns of fixed width, deflated and in base64; the browser decodes them. The
page (html/) sums them up for the chosen moment, by the rules of `_state.py`.
"""

from __future__ import annotations

import base64
import html
import json
import sys
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from ferro_alloc._errors import FerroError
from ferro_alloc.snapshots import _trace
from ferro_alloc.snapshots._findings import NAMES, Findings
from ferro_alloc.snapshots._stacks import KINDS
from ferro_alloc.snapshots._state import kind_of_range, unit_of
from ferro_alloc.snapshots._trace import Snapshot, Trace, rounded

KindsOf = Callable[[Trace], Sequence[str]]
"""The kind of each block of a trace."""
View = dict[str, Any]
"""One device of one snapshot, for the browser; sizes in units of 512 bytes."""
_SCRIPTS = ("data.js", "state.js", "timeline.js", "map.js", "page.js")
# Higher takes twice as long for 3 % less.
_LEVEL = 6


def report(path: str | Path, *, before: Snapshot | str | Path | None = None) -> None:
    """Writes a report of this process's CUDA memory into one file of HTML.

    Call `torch.cuda.memory._record_memory_history()` early: the time line and the lines of code
    cover only its recording. Without it the page shows the moment of the call. `before` is a
    snapshot, or the file of one, shown side by side. Under ferro_alloc the report names graph pools
    with their memory. Raises `FerroError` if CUDA was not used. Initialises nothing.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        raise FerroError("there is no CUDA memory to report: this process has not used CUDA yet")
    write(path, torch.cuda.memory._snapshot(), before=before, pools=pools_in_force(torch))


def write(
    path: str | Path,
    snapshot: Snapshot,
    *,
    before: Snapshot | str | Path | None = None,
    findings: Sequence[Findings] = (),
    pools: Mapping[int, list[dict[str, Any]]] | None = None,
    title: str | None = None,
) -> None:
    """Writes the report of a snapshot, the dictionary of `torch.cuda.memory._snapshot()`.

    `before`: another snapshot, shown side by side. `findings`: replays, whose curves the time line
    shows. `pools`: the memory of each device's pools. Raises `FerroError` for an invalid snapshot,
    or if the report cannot be written.
    """
    snapshot = _trace.checked(snapshot)
    if before is None:
        found = views(snapshot, findings=findings, pools=pools)
    else:
        earlier = before if isinstance(before, Mapping) else _trace.load(before)
        found = views(_trace.checked(earlier), label="before")
        found += views(snapshot, label="after", findings=findings, pools=pools)
    if not found:
        raise FerroError("the snapshot has neither memory nor events of any device")
    write_views(path, found, title or "GPU memory")


def views(
    snapshot: Snapshot,
    *,
    label: str = "",
    findings: Sequence[Findings] = (),
    pools: Mapping[int, list[dict[str, Any]]] | None = None,
    kinds: Sequence[str] = KINDS,
    kinds_of: KindsOf | None = None,
) -> list[View]:
    """The data of the page for each device of a checked snapshot, which can be written as JSON.

    `kinds`: all kinds in the order of their colours, the last one for the rest. `kinds_of`: the
    kinds of a trace's blocks, instead of the heuristic by their frames.
    """
    by_device = {found.trace.device: found for found in findings}
    made = []
    for device in _trace.devices(snapshot):
        found = by_device.get(device)
        trace = found.trace if found is not None else _trace.read(snapshot, device)
        each = _kinds_by_frames(trace) if kinds_of is None else kinds_of(trace)
        held = (pools or {}).get(device, [])
        made.append(_view(label, trace, list(kinds), each, found, held))
    return made


def write_views(
    path: str | Path, views: Sequence[View], title: str, remarks: Sequence[str] = ()
) -> None:
    """Writes the page of some views; those of one device are side by side. `remarks` are lines
    below the title. Raises `FerroError` if it cannot be written."""
    try:
        Path(path).write_text(_page(title, remarks, views), encoding="utf-8")
    except OSError as error:
        raise FerroError(f"the report cannot be written to {path}: {error.strerror}") from error


def _kinds_by_frames(trace: Trace) -> list[str]:
    kinds = trace.stacks.kinds
    return [
        "graphs and pools" if pool else kinds[stack]
        for stack, pool in zip(trace.blocks.stack, trace.pools, strict=True)
    ]


def _view(
    label: str,
    trace: Trace,
    kinds: list[str],
    of_blocks: Sequence[str],
    found: Findings | None,
    pools: list[dict[str, Any]],
) -> View:
    blocks, unit = trace.blocks, _trace.ROUNDING
    places = {kind: place for place, kind in enumerate(kinds)}
    kind = array("B", (places[name] for name in of_blocks))
    ranges = trace.ranges
    range_kinds = [kind_of_range(trace, r.address, r.size, r.stream) for r in ranges]
    streams = sorted({*blocks.stream, *(r.stream for r in ranges)})
    place = {stream: number for number, stream in enumerate(streams)}
    starts = {s.address: trace.pool_handles.index(s.pool) for s in trace.segments}
    columns: dict[str, array[Any]] = {
        "time": array("I", (max(t, 0) // 10 for t in trace.times)),
        "address": array("d", (a / unit for a in blocks.address)),
        "size": array("I", (rounded(s) // unit for s in blocks.size)),
        "born": blocks.born,
        "requested": blocks.requested,
        "died": blocks.died,
        "stack": blocks.stack,
        "tag": array("H", (min(t, 65535) for t in blocks.tag)),
        "kind": kind,
        "stream": array("H", (place[s] for s in blocks.stream)),
        "rangeAddress": array("d", (r.address / unit for r in ranges)),
        "rangeSize": array("I", (r.size // unit for r in ranges)),
        "rangeBegin": array("i", (r.begin for r in ranges)),
        "rangeEnd": array("i", (r.end for r in ranges)),
        "rangeStream": array("H", (place[r.stream] for r in ranges)),
        "rangeUnit": array(
            "I",
            (unit_of(trace, r.size, k) // unit for r, k in zip(ranges, range_kinds, strict=True)),
        ),
        "rangePool": array("H", (starts.get(r.address, 0) for r in ranges)),
    }
    return {
        "label": label,
        "device": trace.device,
        "allocator": NAMES[trace.allocator],
        "settings": trace.settings,
        "events": trace.events,
        "kinds": kinds,
        "lines": trace.stacks.lines,
        "frames": trace.stacks.frames,
        "tags": [tag or "(no tag)" for tag in trace.tags],
        "streams": [f"{stream:#x}" for stream in streams],
        "pools": [_pool_label(trace, handle) for handle in trace.pool_handles],
        "poolSizes": pools,
        "failures": trace.failures,
        "curves": _curves(found),
        "summary": None if found is None else str(found),
        "columns": {name: [data.typecode, _packed(data)] for name, data in columns.items()},
    }


def _pool_label(trace: Trace, handle: tuple[int, int]) -> str:
    if handle == (0, 0):
        return "default pool"
    name = trace.pool_names.get(handle, "")
    return f"pool {handle[0]}, {handle[1]}{': ' if name else ''}{name}"


def _curves(found: Findings | None) -> list[dict[str, Any]]:
    if found is None:
        return []
    return [
        {
            "name": result.name,
            "peak": result.outcome.peak_reserved_bytes,
            "events": [event for event, _ in result.outcome.samples],
            "bytes": [size for _, size in result.outcome.samples],
        }
        for result in found.results
        if result is not found.own
    ]


def _packed(data: array[Any]) -> str:
    """Groups the n-th bytes of all numbers and deflates: neighbours have the same high bytes."""
    raw, width = data.tobytes(), data.itemsize
    planes = b"".join(raw[n::width] for n in range(width))
    return base64.b64encode(zlib.compress(planes, _LEVEL)).decode("ascii")


def _page(title: str, remarks: Sequence[str], views: Sequence[View]) -> str:
    folder = files("ferro_alloc.snapshots") / "html"
    page = (folder / "page.html").read_text(encoding="utf-8")
    script = "\n".join((folder / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    # `</` would end the element that contains the data.
    data = json.dumps(list(views), separators=(",", ":")).replace("</", "<\\/")
    parts = {
        "TITLE": html.escape(title),
        "REMARKS": html.escape("\n".join(remarks)),
        "STYLE": (folder / "page.css").read_text(encoding="utf-8"),
        "SCRIPT": script,
        "DATA": data,
    }
    for name, text in parts.items():
        page = page.replace(f"@{name}@", text)
    return page


def pools_in_force(torch: Any) -> dict[int, list[dict[str, Any]]]:
    """Returns the memory of each device's private pools, for `write()`; only ferro_alloc's
    pools."""
    from ferro_alloc.allocator import is_installed

    if not is_installed():
        return {}
    from ferro_alloc.graphs._sizes import private_pools

    return {
        device: [
            {
                "name": pool.name,
                "handle": list(pool.handle),
                "private": pool.sizes.private_bytes,
                "live": pool.sizes.live_bytes,
                "scratch": pool.sizes.scratch_bytes,
                "shared": pool.sizes.shared_bytes,
            }
            for pool in private_pools(device)
        ]
        for device in range(torch.cuda.device_count())
    }
