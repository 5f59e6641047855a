"""Whose code a line is: the program's own, or that of Python, torch or another library."""

LIBRARIES = (
    "/site-packages/",
    "/dist-packages/",
    "/torch/",
    "<frozen",
    "/lib/python3.",
    "<eval_with_key>",
    "<autograd>",
)
"""Parts of the names of files that are not the program's own."""
NO_LINE = "(no line of Python: threads of autograd, libraries)"
"""In place of a line."""


def is_own(file: str) -> bool:
    return not any(part in file for part in LIBRARIES)
