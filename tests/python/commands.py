"""Runs the command line of ferro_alloc."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tests import programs
from tests.programs import Completed, find_program


def command(
    *words: str, env: Mapping[str, str] | None = None, start_anew: bool = False
) -> Completed:
    """Runs `python -m ferro_alloc WORDS`. Torch is already loaded, unless `start_anew` is set."""
    if start_anew:
        return programs.run([sys.executable, "-m", "ferro_alloc", *words], env)
    # The command chooses the allocator before the program imports torch. Torch reads only this
    # setting while it is loaded.
    expandable = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    chosen = expandable if "expandable" in words else {}
    path = find_program("command.py")
    return programs.run_simulated([path, *words], None, {**chosen, **(env or {})})


def _fork_child(words: Sequence[str], env: Mapping[str, str], **options: Any) -> Completed:
    python, option, module, *arguments = words
    assert (python, option) == (sys.executable, "-m")
    if module == "ferro_alloc":
        return command(*arguments)
    chosen = env.get("PYTORCH_CUDA_ALLOC_CONF", "")
    if chosen not in ("", "expandable_segments:False", "expandable_segments:True"):
        return subprocess.run(words, env=env, **options)
    kept = {"PYTORCH_CUDA_ALLOC_CONF": chosen} if chosen.endswith("True") else {}
    path = programs.ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return programs.run_simulated([path, *arguments], None, kept)


def fork_run(
    words: Sequence[str], environ: Mapping[str, str], folder: str | None, shows_output: bool
) -> tuple[int, str]:
    """Replaces `ferro_alloc.fit._runs.execute`: forks the run, because torch is loaded."""
    done = command("simulate", *words)
    return done.returncode, done.stderr


class ForkedChildren:
    """Replaces the module `subprocess` where ferro_alloc runs its own commands and modules: forks
    them, because torch is loaded. A child with other settings of torch starts a new interpreter."""

    run = staticmethod(_fork_child)
    DEVNULL, PIPE = subprocess.DEVNULL, subprocess.PIPE
