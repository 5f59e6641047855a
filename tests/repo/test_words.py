"""Text that the files of the repository must not contain."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SKIPPED_SUFFIXES = (".png", ".json", ".bin", ".gz")

FORBIDDEN = {
    # The words are split, so that this file does not contain them.
    "unfinished work": re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b"),
    "a path of one machine": re.compile(r"/wo" r"rk/|/ho" r"me/\w|/ro" r"ot/"),
    "a merge that was left open": re.compile(r"^(<<<" r"<<<<|>>>" r">>>>) ", re.MULTILINE),
}


def files() -> list[Path]:
    """Tracked files and new ones that are not ignored; all sources where git is absent."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    paths = (ROOT / line for line in listing.stdout.splitlines())
    return [path for path in paths if path.is_file() and path.suffix not in SKIPPED_SUFFIXES]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_files_contain_nothing_forbidden(what: str) -> None:
    found = []
    for path in files():
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [f"{path.relative_to(ROOT)}: {m.group()}" for m in FORBIDDEN[what].finditer(text)]
    assert not found, f"{what}: {found}"


def test_python_lines_and_sources_end_with_one_line_break() -> None:
    wrong = []
    for path in files():
        if path.suffix in (".py", ".h", ".cpp", ".md", ".toml", ".sh"):
            data = path.read_bytes()
            if data and (not data.endswith(b"\n") or data.endswith(b"\n\n")):
                wrong.append(str(path.relative_to(ROOT)))
    assert not wrong
