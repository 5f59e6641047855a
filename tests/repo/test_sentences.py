"""README and docs are read in a hurry: no sentence of more than 30 words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
MOST_WORDS = 30

LEFT_OUT = re.compile(r"^(```|~~~).*?^\1\s*?$|<!--.*?-->", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"``.+?``|`[^`]+`", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
# What begins a block of its own: an item of a list, a heading, a quotation.
BEGIN = re.compile(r"^\s*([-*+] |\d+\. |#+ |> ?)")
# Of a table's cell only: names alone are looked up, not read.
NAMES = re.compile(r"CODE(?:\s*(?:,|and|or)\s*CODE)+")
END = re.compile(r"(?<=[.!?])[)\"*_]*\s+(?=\S)")
SHORT_FORMS = re.compile(r"\b(e\.g|i\.e|vs|etc|cf)\.")


def blocks(text: str) -> list[str]:
    """Paragraphs, items and cells, each on one line."""
    found: list[str] = []
    paragraph: list[str] = []
    for line in [*text.splitlines(), ""]:
        cells = line.strip().startswith("|")
        if not line.strip() or cells or BEGIN.match(line):
            found.append(" ".join(paragraph))
            paragraph = []
        if cells:
            found += [NAMES.sub("CODE", cell) for cell in line.split("|")]
        # What is indented after an empty line is code.
        elif line.strip() and (paragraph or not line.startswith("    ") or BEGIN.match(line)):
            paragraph.append(BEGIN.sub("", line).strip())
    return [block for block in found if block]


def sentences(text: str) -> list[str]:
    text = LINK.sub(r"\1", CODE.sub("CODE", LEFT_OUT.sub("", text)))
    text = SHORT_FORMS.sub(r"\1", text)
    return [sentence.strip() for block in blocks(text) for sentence in END.split(block)]


def words(sentence: str) -> int:
    return sum(any(char.isalnum() for char in word) for word in sentence.split())


def too_long(page: Path) -> list[str]:
    where = page.relative_to(ROOT)
    return [
        f"{where}: {words(sentence)} words: {sentence}"
        for sentence in sentences(page.read_text())
        if words(sentence) > MOST_WORDS
    ]


def test_sentences_are_told_apart() -> None:
    text = """# A heading

One of `code that counts once`, see [a link of five words](target.md). *Two?* And
three.

```
none
```
* An item,
  continued: 1.5 of it.

    an indented command

| a cell. with two | `a`, `b` and `c` |
|---|---|
"""
    found = sentences(text)
    assert found == [
        "A heading",
        "One of CODE, see a link of five words.",
        "*Two?",
        "And three.",
        "An item, continued: 1.5 of it.",
        "a cell.",
        "with two",
        "CODE",
        "---",
        "---",
    ]
    assert [words(sentence) for sentence in found] == [2, 9, 1, 2, 6, 2, 2, 1, 0, 0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_is_long(page: Path) -> None:
    found = too_long(page)
    assert not found, f"{MOST_WORDS} words at most:\n" + "\n".join(found)
