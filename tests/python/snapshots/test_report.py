"""The report in a real browser: it opens without errors and shows the numbers of the snapshot."""

from __future__ import annotations

import pickle
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

from ferro_alloc import FerroError
from ferro_alloc.snapshots import _trace, load, read, write
from ferro_alloc.snapshots._state import state_at
from tests.conftest import RunSimulated
from tests.python.snapshots.browser import needs_browser, numbers, opened

MILLION = 1_000_000

LIVE = """\
import sys
import torch
import ferro_alloc

ferro_alloc.install()
torch.cuda.memory._record_memory_history(stacks="python")
handle = ferro_alloc.graphs.graph_pool_handle(name="decode </script> of <b>")
graph = torch.cuda.CUDAGraph()
kept = [torch.empty(1 << 20, device="cuda") for _ in range(4)]
with torch.cuda.graph(graph, pool=handle):
    result = kept[0] * 2
del kept[1]
ferro_alloc.report(sys.argv[1])
print(torch.cuda.memory_allocated())
"""


def event(action: str, address: int, size: int, time_us: int, line: int) -> dict[str, Any]:
    frames = [{"name": "step", "filename": "/code/train.py", "line": line}]
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": time_us,
        "frames": frames,
    }


def made_up(events: int) -> dict[str, Any]:
    """A snapshot of many blocks in one segment: random sizes, lives, times and 1,000 lines."""
    chance = random.Random(events)
    size, slots = 1 << 16, 4096
    trace = [event("segment_alloc", 1 << 40, slots * size, 0, 1)]
    free, used, now = list(range(slots)), [], 0
    while len(trace) < events:
        now += chance.randrange(20)
        line = chance.randrange(1000)
        if len(used) > slots // 2:
            slot, length = used.pop(chance.randrange(len(used)))
            free.append(slot)
            for action in ("free_requested", "free_completed"):
                trace.append(event(action, (1 << 40) + slot * size, length, now, line))
        else:
            slot, length = free.pop(chance.randrange(len(free))), chance.randrange(1, size)
            used.append((slot, length))
            trace.append(event("alloc", (1 << 40) + slot * size, length, now, line))
    live = {}
    for entry in trace[1:]:
        if entry["action"] == "alloc":
            live[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_completed":
            del live[entry["addr"]]
    blocks = [
        {"address": a, "size": size, "requested_size": n, "state": "active_allocated"}
        for a, n in sorted(live.items())
    ]
    segment = {
        "device": 0,
        "address": 1 << 40,
        "total_size": slots * size,
        "stream": 0,
        "segment_type": "large",
        "blocks": blocks,
    }
    return {"segments": [segment], "device_traces": [trace]}


@needs_browser
def test_browser_shows_the_numbers_of_the_snapshot(tmp_path: Path) -> None:
    snapshot = made_up(2000)
    path = tmp_path / "report.html"
    write(path, snapshot)
    trace = read(snapshot, 0)
    reserved = trace.reserved()
    state = state_at(trace, reserved.index(max(reserved)))
    page = opened(path)
    assert numbers(page) == {
        "peak-reserved": max(reserved),
        "peak-active": max(trace.active()),
        "reserved": state.reserved,
        "active": state.active,
        "stranded": state.stranded,
        "cached": state.cached,
    }
    assert page.count("<canvas") == 2


@needs_browser
def test_before_and_after_stand_side_by_side(tmp_path: Path) -> None:
    earlier = tmp_path / "before.pickle"
    earlier.write_bytes(pickle.dumps(made_up(500)))
    path = tmp_path / "report.html"
    write(path, made_up(5000), before=earlier)
    page = opened(path)
    assert page.count("<canvas") == 4
    assert "Before and after, device 0" in page
    before, after = (max(read(s, 0).active()) for s in (load(earlier), made_up(5000)))
    assert re.findall(r'"peak-active" data-bytes="(\d+)"', page) == [str(before), str(after)]


@needs_browser
def test_report_of_a_running_program_names_its_pools_and_lines(
    run_simulated: RunSimulated, tmp_path: Path
) -> None:
    path = tmp_path / "live.html"
    done = run_simulated(LIVE, str(path), gpu="h100")
    page = opened(path)
    # Names of the program are shown as text, with any characters.
    assert "decode &lt;/script&gt; of &lt;b&gt;" in page
    assert re.search(r"program\.py:9 &lt;(listcomp|module)&gt;", page)
    assert "Graph pools, now" in page
    shown = numbers(page)
    assert shown["peak-active"] >= int(done.stdout)


@needs_browser
def test_a_million_events_are_written_and_opened_in_time(tmp_path: Path) -> None:
    snapshot = made_up(MILLION)
    path = tmp_path / "million.html"
    start = time.process_time()
    write(path, snapshot)
    seconds = time.process_time() - start
    few = tmp_path / "few.html"
    write(few, made_up(100))
    opened(few)
    # Wall time, because the browser's clock is virtual here; a page of 100 events measures its
    # start.
    clock = [time.perf_counter()]
    for page in (few, path):
        opened(page)
        clock.append(time.perf_counter())
    opening = (clock[2] - clock[1]) - (clock[1] - clock[0])
    print(f"{seconds:.1f} s, {path.stat().st_size / 1e6:.1f} MB, opened in {opening:.2f} s more")
    assert seconds < 60
    assert path.stat().st_size < 30e6
    assert opening < 3


def test_report_needs_no_network(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write(path, made_up(100))
    text = path.read_text()
    assert re.findall(r"(?:src|href)=|@import|https?://", text) == []
    assert not re.search(r"@[A-Z]+@", text)


def test_report_without_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FerroError, match="neither memory nor events"):
        write(tmp_path / "report.html", {"segments": [], "device_traces": []})
    with pytest.raises(FerroError, match="cannot be written to"):
        write(tmp_path / "missing" / "report.html", made_up(100))
    with pytest.raises(FerroError, match="is not a memory snapshot"):
        _trace.checked({})
