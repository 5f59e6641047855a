"""The documentation names what exists: every option, no broken link."""

from __future__ import annotations

import dataclasses
import enum
import re
from pathlib import Path
from types import FunctionType

import pytest

import ferro_alloc
from ferro_alloc import Config, graphs, memory_saver, sizes, vllm_plugin

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/README.md")]
)
# The changelog names files of earlier versions.
NOW = [page for page in PAGES if page.name != "CHANGELOG.md"]
# `python -m benchmarks.graphs`, or the module alone as code.
MODULE = re.compile(r"(?:-m |`)(benchmarks(?:\.\w+)+)")
FILE = re.compile(r"`((?:\.ci|benchmarks|csrc|docs|ferro_alloc|tests|tools)/[^`\s]*)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
SECTION = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
PRINTED = re.compile(r"\b(docs/[\w/-]+\.md)#([\w-]+)")
"""In the texts of the package."""


def options_in_table(page: Path) -> dict[str, str]:
    """Rows of the form | `name` | `default` | meaning |."""
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", page.read_text(), re.MULTILINE)
    return dict(rows)


def test_readme_lists_exactly_the_options_of_config() -> None:
    expected = {
        option.name: "none" if option.default is None else str(option.default).lower()
        for option in dataclasses.fields(Config)
    }
    assert options_in_table(ROOT / "README.md") == expected


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def sections_of(page: Path) -> set[str]:
    """The anchors that GitHub makes of the page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_sections(page: Path) -> None:
    for target, section in SECTION.findall(page.read_text()):
        if (target.endswith(".md") and "://" not in target) or not target:
            linked = page.parent / target if target else page
            assert section in sections_of(linked), f"{page.name} links to {target}#{section}"


def test_printed_sections_exist() -> None:
    files = [*ROOT.glob("ferro_alloc/**/*.py"), *ROOT.glob("csrc/**/*.cpp")]
    printed = [found for file in files for found in PRINTED.findall(file.read_text())]
    assert printed
    for page, section in printed:
        assert section in sections_of(ROOT / page), f"{page}#{section}"


@pytest.mark.parametrize("page", NOW, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_modules_and_files_exist(page: Path) -> None:
    text = page.read_text()
    for module in MODULE.findall(text):
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
    for name in FILE.findall(text):
        # {a,b} stands for either.
        start, _, rest = name.partition("{")
        inner, _, end = rest.partition("}")
        for part in inner.split(","):
            assert list(ROOT.glob(f"{start}{part}{end}".rstrip("/"))), f"{page.name} names {name}"


def public_items() -> list[str]:
    """The public items of the allocator and of the graphs, with the members of their classes."""
    names = [f"sizes.{name}" for name in vars(sizes) if name.isupper()]
    names += ["sizes.round_size", "sizes.allocation_size"]
    for module in (ferro_alloc, graphs, memory_saver, vllm_plugin):
        for name in module.__all__:
            item = getattr(module, name)
            if name.startswith("__") or item is sizes:
                continue
            names.append(name)
            if isinstance(item, type) and not issubclass(item, enum.Enum | Exception):
                names += [f"{name}.{offered}" for offered in offers_of(item)]
    return names


def offers_of(item: type) -> list[str]:
    """Methods and properties; fields of a dataclass need no row."""
    kinds = (FunctionType, classmethod, staticmethod, property)
    found = [name for name, value in vars(item).items() if isinstance(value, kinds)]
    # For the rest of the package.
    return [name for name in found if not name.startswith("_") and name != "native"]


@pytest.mark.parametrize("item", public_items())
def test_every_public_item_has_a_row(item: str) -> None:
    rows = re.findall(r"^\| (`.*)$", (ROOT / "docs" / "compatibility.md").read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([\w.]+)`", row.split(" | ")[0])}
    assert item in named


def test_changelog_names_the_version() -> None:
    from ferro_alloc import __version__

    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{__version__}]" in changelog or "## [Unreleased]" in changelog
