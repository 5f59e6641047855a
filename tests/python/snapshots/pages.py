"""Reads the contents of the page of a report, without a browser."""

from __future__ import annotations

import base64
import json
import re
import zlib
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

UNIT = 512


def views_of(page: Path) -> list[dict[str, Any]]:
    """The data of the page, with its columns unpacked."""
    found = re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    views: list[dict[str, Any]] = json.loads(found[1])
    for view in views:
        view["columns"] = {name: _unpacked(*each) for name, each in view["columns"].items()}
    return views


def _unpacked(code: str, text: str) -> array[Any]:
    planes = zlib.decompress(base64.b64decode(text))
    width = array(code).itemsize
    count = len(planes) // width
    raw = bytearray(len(planes))
    for plane in range(width):
        raw[plane::width] = planes[plane * count : (plane + 1) * count]
    return array(code, bytes(raw))


def kinds_at_peak(view: dict[str, Any]) -> dict[str, int]:
    """Bytes in use by kind, at the event with the most bytes in use."""
    columns = view["columns"]
    changes = [0] * (view["events"] + 1)
    for size, born, died in zip(columns["size"], columns["born"], columns["died"], strict=True):
        changes[max(born, 0)] += size
        if died <= view["events"]:
            changes[died] -= size
    held, most, peak = 0, -1, 0
    for event, change in enumerate(changes):
        held += change
        if held > most:
            most, peak = held, event
    found: Counter[str] = Counter()
    names = ("size", "kind", "born", "died")
    for size, kind, born, died in zip(*(columns[name] for name in names), strict=True):
        if born <= peak < died:
            found[view["kinds"][kind]] += size * UNIT
    return dict(found)
