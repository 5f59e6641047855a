"""A real browser without a window, which opens a page and carries out the actions of a user."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests import programs

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason=f"no browser on this machine: none of {', '.join(BROWSERS)}"
)


def opened(path: Path) -> str:
    """The final page in the browser. Any output on its console fails the test."""
    assert BROWSER is not None
    done = programs.run(
        [
            BROWSER,
            *("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
            *(f"--user-data-dir={path.parent / 'profile'}", "--virtual-time-budget=60000"),
            *("--dump-dom", path.as_uri()),
        ]
    )
    said = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    assert not said, said
    assert "data-ready" in done.stdout, done.stderr
    return done.stdout


def numbers(page: str) -> dict[str, int]:
    """The numbers of the first panel, in bytes."""
    found = re.findall(r'data-number="([\w-]+)" data-bytes="(\d+)"', page)
    return {name: int(size) for name, size in reversed(found)}


# Helpers of the scripts that `acted` runs. Positions are fractions of the canvas.
_ACTS = """
const pause = () => new Promise((done) => setTimeout(done, 30));
const canvases = () => [...document.querySelectorAll("canvas")];
const tipText = () => tip.hidden ? "" : tip.textContent;
const texts = (selector) => [...document.querySelectorAll(selector)].map((e) => e.textContent);
// Of every panel.
function push(text) {
  for (const button of document.querySelectorAll("button")) {
    if (button.textContent === text) button.click();
  }
}
function send(canvas, type, x, y, more = {}) {
  const box = canvas.getBoundingClientRect();
  const at = { clientX: box.left + x, clientY: box.top + y, bubbles: true, ...more };
  const Kind = type.endsWith("click") ? MouseEvent : PointerEvent;
  canvas.dispatchEvent(new Kind(type, at));
}
const alongX = (canvas, share) => LEFT + share * (Math.floor(canvas.clientWidth - LEFT - 4) - 1);
function press(canvas, from, to, more) {
  send(canvas, "pointerdown", alongX(canvas, from), 100, more);
  send(canvas, "pointermove", alongX(canvas, to), 100, more);
  send(canvas, "pointerup", alongX(canvas, to), 100, more);
}
function overTime(canvas, share) {
  send(canvas, "pointermove", alongX(canvas, share), 100);
  return tipText();
}
// A share of the tape of addresses.
const onMap = (canvas, share) => {
  const place = share * ROWS, row = Math.floor(place);
  return [(place - row) * canvas.clientWidth, row * (ROW + GAP) + ROW / 2];
};
function overMap(canvas, share) {
  send(canvas, "pointermove", ...onMap(canvas, share));
  return tipText();
}
function shown(name, panel = 0) {
  const numbers = document.querySelectorAll(`[data-number="${name}"]`);
  return Number(numbers[panel].dataset.bytes);
}
const picture = (canvas) => canvas.toDataURL();
"""


def acted(path: Path, script: str) -> dict[str, Any]:
    """The results of a script in the page, which it stores in `found`. It must not cause an
    error."""
    page = path.read_text()
    added = f"""
<script>
(async () => {{
  {_ACTS}
  while (!document.body.dataset.ready) await pause();
  const found = {{}};
  {script}
  document.body.append(element("output", {{ id: "found", textContent: JSON.stringify(found) }}));
}})();
</script>
"""
    changed = path.with_suffix(".acted.html")
    changed.write_text(page.replace("</body>", f"{added}</body>"))
    outcome = re.search(r'<output id="found">(.*?)</output>', opened(changed), re.DOTALL)
    assert outcome is not None, "the script did not come to its end"
    result: dict[str, Any] = json.loads(html.unescape(outcome[1]))
    return result
