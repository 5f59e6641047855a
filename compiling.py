"""Compiles and links C++ on all cores, and again only what changed; setup.py needs no build tool.

What a target was made with is kept in files beside it: the command, and from the compiler the list
of the headers that it read.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

Command = tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """One run of the compiler, which makes the target from the inputs."""

    target: Path
    command: Command
    inputs: tuple[Path, ...]

    def is_current(self) -> bool:
        try:
            since = self._record.stat().st_mtime_ns
            return (
                self.target.exists()
                and self._record.read_text() == shlex.join(self.command)
                and all(path.stat().st_mtime_ns <= since for path in self._read())
            )
        except FileNotFoundError:
            return False

    def run(self) -> None:
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self._record.unlink(missing_ok=True)
        # Written first: a file that is edited while the compiler runs is newer than this one.
        begun = self._record.with_suffix(".begun")
        begun.write_text(shlex.join(self.command))
        done = subprocess.run(self.command, capture_output=True, text=True)
        print(done.stdout + done.stderr, end="", file=sys.stderr, flush=True)
        if done.returncode != 0:
            raise SystemExit(f"{self.target} could not be built; the compiler's messages are above")
        begun.replace(self._record)

    @property
    def _record(self) -> Path:
        return self.target.with_name(f"{self.target.name}.made")

    def _read(self) -> list[Path]:
        headers = headers_of(self.target)
        if not headers.exists():
            return list(self.inputs)
        # A rule of make, `target: file file \`, in which `\ ` is a space of a name.
        names = re.findall(r"(?:\\ |[^\s\\])+", headers.read_text().partition(": ")[2])
        return [*self.inputs, *(Path(name.replace("\\ ", " ")) for name in names)]


def headers_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.d")


def jobs() -> int:
    return int(os.environ.get("MAX_JOBS") or len(os.sched_getaffinity(0)))


def run(steps: Iterable[Step]) -> None:
    """Runs those whose target is not current, side by side, and prints a line for each that has
    ended, in the form of ninja. SystemExit once one has failed."""
    wanted = [step for step in steps if not step.is_current()]
    with ThreadPoolExecutor(jobs()) as pool:
        try:
            ends = {pool.submit(step.run): step for step in wanted}
            for number, end in enumerate(as_completed(ends), 1):
                end.result()
                print(f"[{number}/{len(wanted)}] {ends[end].target}", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def compile_unit(
    compiler: Command, sources: Sequence[Path], root: Path, target: Path, flags: Sequence[str]
) -> Step:
    """Several sources as one: the headers that they share are most of what each would compile."""
    unit = target.with_suffix(".cpp")
    text = "".join(f'#include "{path.relative_to(root).as_posix()}"\n' for path in sources)
    if not unit.exists() or unit.read_text() != text:
        unit.parent.mkdir(parents=True, exist_ok=True)
        unit.write_text(text)
    notes = ("-MMD", "-MF", str(headers_of(target)))
    command = (*compiler, *flags, f"-I{root}", *notes, "-c", str(unit), "-o", str(target))
    return Step(target, command, (unit,))


def link(compiler: Command, target: Path, inputs: Sequence[Path], flags: Sequence[str]) -> Step:
    """A shared library of objects and other libraries. Flags may name files of the inputs."""
    objects = [str(path) for path in inputs if path.suffix == ".o"]
    return Step(target, (*compiler, "-shared", "-o", str(target), *objects, *flags), tuple(inputs))
