"""Tells lines of the program from those of Python, torch and other libraries."""

from pathlib import Path

LIBRARIES = (
    f"{Path(__file__).parent}/",
    "/site-packages/",
    "/dist-packages/",
    "/torch/",
    "<frozen",
    "/lib/python3.",
    "<eval_with_key>",
    "<autograd>",
)
"""Parts of file names that mark code outside the program."""
NO_LINE = "(no line of Python: threads of autograd, libraries)"
"""Shown if no line is known."""


def is_own(file: str) -> bool:
    return not any(part in file for part in LIBRARIES)
