"""The command line: `python -m ferro_alloc run|simulate|status`."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ferro_alloc import Config, FerroError, __version__, install, status

USAGE = """\
python -m ferro_alloc run [--conf SETTINGS] (SCRIPT | -m MODULE) [ARGUMENT ...]
       python -m ferro_alloc simulate [OPTION ...] SCRIPT [ARGUMENT ...]
       python -m ferro_alloc status"""

DETAILS = """\
run       runs a Python program with ferro_alloc as its CUDA allocator; SETTINGS are of the form
          page_size_mb:2,memory_limit_mb:4096 and stand in for FERRO_ALLOC_CONF
simulate  runs a PyTorch program on a simulated GPU and reports its memory; `simulate --help`
status    says what is installed, and whether ferro_alloc works on this machine"""


@dataclass(frozen=True)
class Program:
    """What the user wants to run, and how Python itself would start it."""

    target: str
    is_module: bool
    arguments: Sequence[str]

    def run(self) -> None:
        """Runs it as `__main__` with Python's own `sys.argv` and `sys.path[0]`."""
        if self.is_module:
            sys.argv = [self.target, *self.arguments]
            # `python -m ferro_alloc` left the working directory in sys.path[0], as -m wants it.
            runpy.run_module(self.target, run_name="__main__", alter_sys=True)
            return
        sys.argv = [self.target, *self.arguments]
        path = Path(self.target)
        if path.is_dir() or path.suffix in (".zip", ".pyz"):
            # run_path puts a folder or an archive in front of sys.path itself; Python would leave
            # no entry for the working directory.
            sys.path.pop(0)
        else:
            sys.path[0] = str(path.resolve().parent)
        runpy.run_path(self.target, run_name="__main__")


def split_program(argv: Sequence[str]) -> tuple[list[str], Program | None]:
    """Parts the launcher's own options from the program and its arguments.

    As with python itself, the first word that is no option, or `-m MODULE`, ends the options;
    everything behind belongs to the program, whatever it looks like.
    """
    options: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "-m":
            if not words:
                return [*options, word], None
            return options, Program(words[0], is_module=True, arguments=words[1:])
        if word == "--" and words:
            return options, Program(words[0], is_module=False, arguments=words[1:])
        if not word.startswith("-"):
            return options, Program(word, is_module=False, arguments=words)
        options.append(word)
        if word == "--conf" and words:
            options.append(words.pop(0))
    return options, None


def run(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ferro_alloc run",
        usage="%(prog)s [--conf SETTINGS] (SCRIPT | -m MODULE) [ARGUMENT ...]",
        description="Runs a Python program with ferro_alloc as its CUDA allocator.",
        allow_abbrev=False,
    )
    parser.add_argument("--conf", metavar="SETTINGS", help="as in FERRO_ALLOC_CONF")
    parser.add_argument("-m", metavar="MODULE", help="run a module, as python -m does")
    options, program = split_program(argv)
    parsed = parser.parse_args(options)
    if program is None:
        parser.error("no program was given: name a script, or -m and a module")
    if not program.is_module and not Path(program.target).exists():
        parser.error(f"there is no file '{program.target}'")
    try:
        install(None if parsed.conf is None else Config.parse(parsed.conf))
    except FerroError as error:
        return refuse(error)
    program.run()
    return 0


def simulate(argv: Sequence[str]) -> int:
    # Only here, so that the other commands work in a package without the simulated GPU.
    from ferro_alloc import _simulate

    return _simulate.main(list(argv))


def refuse(error: FerroError) -> int:
    print(f"ferro_alloc: {error}", file=sys.stderr)
    return 1


def show_status(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ferro_alloc status",
        description="Says what is installed, and whether ferro_alloc works on this machine.",
    )
    parser.parse_args(argv)
    current = status()
    print(current)
    return 1 if current.problem else 0


COMMANDS = {"run": run, "simulate": simulate, "status": show_status}


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 success, 1 a refusal in one sentence, 2 a wrong command line."""
    parser = argparse.ArgumentParser(
        prog="python -m ferro_alloc",
        usage=USAGE,
        description=DETAILS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ferro_alloc {__version__}")
    parser.add_argument("command", choices=sorted(COMMANDS))
    command = parser.parse_args(argv[:1]).command
    return COMMANDS[command](argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
