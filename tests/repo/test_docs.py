"""The documentation names what exists: every option, no broken link."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from ferro_alloc import Config

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def options_in_table(page: Path) -> dict[str, str]:
    """Rows of the form | `name` | `default` | meaning |."""
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", page.read_text(), re.MULTILINE)
    return dict(rows)


def test_readme_lists_exactly_the_options_of_config() -> None:
    expected = {
        option.name: "none" if option.default is None else str(option.default)
        for option in dataclasses.fields(Config)
    }
    assert options_in_table(ROOT / "README.md") == expected


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_changelog_knows_the_version() -> None:
    from ferro_alloc import __version__

    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{__version__}]" in changelog or "## [Unreleased]" in changelog
