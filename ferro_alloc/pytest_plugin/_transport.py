"""Takes reports and warnings of a test from the process that ran it to the run of the user."""

from __future__ import annotations

import marshal
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest


def pack(config: pytest.Config, report: pytest.TestReport) -> dict[str, Any]:
    """The report as values of builtin types."""
    data = config.hook.pytest_report_to_serializable(config=config, report=report)
    return {str(key): _plain(value) for key, value in data.items()}


def unpack(config: pytest.Config, data: dict[str, Any]) -> pytest.TestReport:
    found: pytest.TestReport = config.hook.pytest_report_from_serializable(config=config, data=data)
    if (context := data.get("_subtest.context")) is not None:
        # pytest puts the texts of a subtest's arguments in quotes once more.
        object.__setattr__(found.context, "kwargs", context["kwargs"])
    return found


def pack_warning(found: warnings.WarningMessage) -> dict[str, Any]:
    classes = [(each.__module__, each.__qualname__) for each in found.category.__mro__]
    text = str(found.message)
    line = None if found.line is None else str(found.line)
    return {
        "text": text,
        "classes": classes,
        "file": found.filename,
        "number": found.lineno,
        "line": line,
    }


def unpack_warning(data: dict[str, Any]) -> warnings.WarningMessage:
    category: type[Warning] = Warning
    for module, name in data["classes"]:
        # Another module is not imported for a name.
        found = getattr(sys.modules.get(module), name, None)
        if isinstance(found, type) and issubclass(found, Warning):
            category = found
            break
    try:
        message = category(data["text"])
    except TypeError:
        message = Warning(data["text"])
    return warnings.WarningMessage(
        message, category, data["file"], data["number"], line=data["line"]
    )


def write(file: Path, value: Any) -> None:
    file.write_bytes(marshal.dumps(value))


def read(file: Path) -> Any:
    """None if no process wrote the whole file."""
    try:
        return marshal.loads(file.read_bytes())
    except (FileNotFoundError, EOFError):
        return None


def _plain(value: Any) -> Any:
    """JSON would turn the tuple of a skipped test into a list; marshal keeps it."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, tuple):
        return tuple(_plain(each) for each in value)
    return str(value)
