"""The one exception type of the package."""

from __future__ import annotations


class FerroError(RuntimeError):
    """A refusal, in one sentence: what was expected, what was found, and what to do."""
