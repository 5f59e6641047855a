"""The exception type of the package, and a refusal that several parts share."""

from __future__ import annotations

from pathlib import Path


class FerroError(RuntimeError):
    """A refusal, in one sentence: what was expected, what was found, and what to do."""


def check_file(file: Path, what: str = "report") -> None:
    """Raises `FerroError` if a report, or something else, cannot be written to this file, because
    its folder does not exist or it is one itself."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise FerroError(f"the {what} cannot be written to {file}: there is no folder {folder}")
    if file.is_dir():
        raise FerroError(f"the {what} cannot be written to {file}: it is a folder; name a file")
