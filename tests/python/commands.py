"""Runs the command line of ferro_alloc."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from tests import programs
from tests.programs import Completed, find_program


def command(
    *words: str, env: Mapping[str, str] | None = None, start_anew: bool = False
) -> Completed:
    """`python -m ferro_alloc WORDS`. Torch is loaded already, unless it shall start anew."""
    if start_anew:
        return programs.run([sys.executable, "-m", "ferro_alloc", *words], env)
    # The command chooses the allocator before the program imports torch. Of the choices only this
    # one is read while torch is loaded.
    expandable = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    chosen = expandable if "expandable" in words else {}
    path = find_program("command.py")
    return programs.run_simulated([path, *words], None, {**chosen, **(env or {})})
