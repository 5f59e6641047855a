"""The exception type of the package, and a refusal that several parts share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


class FerroError(RuntimeError):
    """A refusal, in one sentence: what was expected, what was found, and what to do."""


def check_file(
    file: Path, what: str = "report", others: Mapping[str, Path | None] | None = None
) -> None:
    """Raises `FerroError` if a report, or something else, cannot be written to this file, because
    its folder does not exist, it is one itself, or it would replace a Python file or one of the
    `others`, which have their meaning as the key, as in "the program"."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise FerroError(f"the {what} cannot be written to {file}: there is no folder {folder}")
    if file.is_dir():
        raise FerroError(f"the {what} cannot be written to {file}: it is a folder; name a file")
    is_of = [name for name, other in (others or {}).items() if _is_same(file, other)]
    if not is_of and file.suffix == ".py" and file.exists():
        is_of.append("a Python file")
    if is_of:
        raise FerroError(
            f"the {what} cannot be written to {file}: that is {is_of[0]}; name another file"
        )


def _is_same(file: Path, other: Path | None) -> bool:
    return other is not None and file.resolve() == other.resolve()
