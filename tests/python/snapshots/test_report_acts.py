"""The report in a real browser: pointing, choosing a moment, zooming, moving, comparing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ferro_alloc.snapshots import read, write
from ferro_alloc.snapshots._state import state_at
from tests.python.snapshots.browser import acted, needs_browser

MIB = 1 << 20
BASE = 1 << 40
SEGMENT = 66 * MIB

Snapshot = dict[str, Any]


def snapshot(size: int = 9 * MIB) -> Snapshot:
    """Line 7 keeps 3 MiB at the start of a segment; line 8 allocates `size` at 33 MiB and frees
    it."""
    trace = [event("segment_alloc", 0, SEGMENT, 1), event("alloc", 0, 3 * MIB, 7)]
    trace.append(event("alloc", 33 * MIB, size, 8))
    trace.append(event("alloc", 60 * MIB, MIB, 9))
    for _ in range(10):
        trace += [event("free_requested", 60 * MIB, MIB, 9)]
        trace += [event("free_completed", 60 * MIB, MIB, 9), event("alloc", 60 * MIB, MIB, 9)]
    trace += [
        event("free_requested", 33 * MIB, size, 8),
        event("free_completed", 33 * MIB, size, 8),
    ]
    trace.append(event("alloc", 40 * MIB, MIB, 10))
    for number, entry in enumerate(trace):
        entry["time_us"] = 1000 * number
    live = {0: 3 * MIB, 40 * MIB: MIB, 60 * MIB: MIB}
    blocks = [
        {"address": BASE + at, "size": n, "requested_size": n, "state": "active_allocated"}
        for at, n in live.items()
    ]
    segment = {"device": 0, "address": BASE, "total_size": SEGMENT, "stream": 0}
    segment |= {"segment_type": "large", "blocks": blocks}
    return {"segments": [segment], "device_traces": [trace]}


def event(action: str, offset: int, size: int, line: int) -> dict[str, Any]:
    frames = [{"name": "step", "filename": "/code/train.py", "line": line}]
    return {"action": action, "addr": BASE + offset, "size": size, "stream": 0, "frames": frames}


def written(folder: Path, *, before: Snapshot | None = None) -> Path:
    path = folder / "report.html"
    write(path, snapshot(), before=before)
    return path


@needs_browser
def test_pointing_at_a_block_names_its_size_life_and_line(tmp_path: Path) -> None:
    found = acted(
        written(tmp_path),
        """
        push("peak in use");
        const map = canvases()[1];
        found.first = overMap(map, 1 / 66);
        found.second = overMap(map, 35 / 66);
        found.free = overMap(map, 20 / 66);
        send(map, "pointerleave", 0, 0);
        found.left = tipText();
        """,
    )
    lines = found["first"].splitlines()
    assert lines[0] == "3.00 MiB, other"
    assert lines[1].startswith("from 1.0 ms to its end")
    assert lines[2:] == ["default pool, stream 0x0", "code/train.py:7 step"]
    assert found["second"].splitlines()[0] == "9.00 MiB, other"
    assert found["second"].endswith("code/train.py:8 step")
    assert found["free"].startswith("free, but stranded beside live blocks")
    assert found["left"] == ""


@needs_browser
def test_another_moment_has_another_map_and_other_numbers(tmp_path: Path) -> None:
    found = acted(
        written(tmp_path),
        """
        push("peak in use");
        const [time, map] = canvases();
        found.before = [shown("active"), overMap(map, 35 / 66), texts("h3")[1]];
        const seen = picture(map);
        press(time, 1, 1);
        found.after = [shown("active"), overMap(map, 35 / 66), texts("h3")[1]];
        found.other = seen !== picture(map);
        push("peak in use");
        found.again = [shown("active"), overMap(map, 35 / 66)];
        found.same = seen === picture(map);
        """,
    )
    trace = read(snapshot(), 0)
    last, most = trace.events - 1, max(trace.active())
    assert found["before"][0] == found["again"][0] == most == 13 * MIB
    assert found["after"][0] == state_at(trace, last).active == 5 * MIB
    assert found["before"][1].startswith("9.00 MiB")
    assert found["again"][1].startswith("9.00 MiB")
    assert found["after"][1].startswith("free, but stranded")
    assert found["after"][2].endswith(f"event {last}")
    assert found["other"]
    assert found["same"]


@needs_browser
def test_time_line_zooms_moves_and_shows_all_again(tmp_path: Path) -> None:
    found = acted(
        written(tmp_path),
        """
        const time = canvases()[0];
        const at = (share) => Number(overTime(time, share).match(/event (\\d+)/)[1]);
        const ends = () => [at(0), at(1)];
        const all = picture(time);
        found.all = ends();
        press(time, 0.25, 0.5);
        found.zoomed = ends();
        found.drawn = all !== picture(time);
        press(time, 0.75, 0.25, { shiftKey: true });
        found.moved = ends();
        press(time, 0, 1, { shiftKey: true });
        press(time, 0, 1, { shiftKey: true });
        found.first = ends();
        send(time, "dblclick", 200, 100);
        found.whole = ends();
        found.as_before = all === picture(time);
        found.text = overTime(time, 1);
        """,
    )
    last = read(snapshot(), 0).events - 1
    quarter, half = round(last / 4), round(last / 2)
    assert found["all"] == found["whole"] == [0, last]
    assert found["zoomed"] == [quarter, half]
    shift = round((half - quarter) / 2)
    assert abs(found["moved"][0] - (quarter + shift)) <= 1
    assert found["moved"][1] - found["moved"][0] == half - quarter
    assert found["first"] == [0, half - quarter]
    assert found["drawn"]
    assert found["as_before"]
    assert "in use 5.00 MiB, reserved 66.0 MiB" in found["text"]


@needs_browser
def test_a_click_on_a_block_finds_all_of_its_line(tmp_path: Path) -> None:
    found = acted(
        written(tmp_path),
        """
        push("peak in use");
        const map = canvases()[1];
        const chosen = () => texts("tr.chosen td:first-child");
        const seen = picture(map);
        send(map, "click", ...onMap(map, 1 / 66));
        found.chosen = chosen();
        found.dimmed = seen !== picture(map);
        send(map, "click", ...onMap(map, 1 / 66));
        found.none = chosen();
        push("line of code");
        found.legend = document.querySelector(".legend").textContent;
        """,
    )
    assert set(found["chosen"]) == {"code/train.py:7 step"}
    assert found["dimmed"]
    assert found["none"] == []
    assert "code/train.py:8 step" in found["legend"]


@needs_browser
def test_before_and_after_have_separate_moments(tmp_path: Path) -> None:
    found = acted(
        written(tmp_path, before=snapshot(size=20 * MIB)),
        """
        const [time, map, , afterMap] = canvases();
        push("peak in use");
        found.maps = [overMap(map, 35 / 66), overMap(afterMap, 35 / 66)];
        found.active = [shown("active", 0), shown("active", 1)];
        press(time, 1, 1);
        found.then = [shown("active", 0), shown("active", 1)];
        found.table = texts("table tr");
        """,
    )
    assert [text.splitlines()[0] for text in found["maps"]] == [
        "20.0 MiB, other",
        "9.00 MiB, other",
    ]
    assert found["active"] == [24 * MIB, 13 * MIB]
    assert found["then"] == [5 * MIB, 13 * MIB]
    assert "peak in use24.0 MiB13.0 MiB\N{MINUS SIGN}11.0 MiB" in found["table"]
