"""The exception type of the package, and a refusal that several parts share."""

from __future__ import annotations

from pathlib import Path


class FerroError(RuntimeError):
    """A refusal, in one sentence: what was expected, what was found, and what to do."""


def check_folder(report: Path) -> None:
    """Raises `FerroError` if the folder of a report does not exist."""
    folder = report.absolute().parent
    if not folder.is_dir():
        raise FerroError(f"the report cannot be written to {report}: there is no folder {folder}")
