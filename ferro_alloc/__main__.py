"""The command line: `python -m ferro_alloc run|simulate|replay|status|top`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ferro_alloc import Config, FerroError, __version__, _variable, install, status
from ferro_alloc._program import split_program
from ferro_alloc.config import ENVIRONMENT_VARIABLE

USAGE = """\
python -m ferro_alloc run [--children] [--conf SETTINGS] (SCRIPT | -m MODULE) [ARGUMENT ...]
       python -m ferro_alloc simulate [OPTION ...] SCRIPT [ARGUMENT ...]
       python -m ferro_alloc replay SNAPSHOT [--report FILE] [OPTION ...]
       python -m ferro_alloc status
       python -m ferro_alloc top [--once] [--json] [--interval SECONDS]"""

DETAILS = """\
run       runs a Python program with ferro_alloc as its CUDA allocator; SETTINGS have the form
          page_size_mb:2,memory_limit_mb:4096 and replace FERRO_ALLOC_CONF; with --children
          also the Python processes that the program starts
simulate  runs a PyTorch program on a simulated GPU and reports its memory; `simulate --help`
replay    computes what a program would have taken under other allocators, from its snapshot
status    reports what is installed, and whether ferro_alloc works on this machine
top       shows the memory of processes that run under ferro_alloc, every second"""


def run(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ferro_alloc run",
        usage="%(prog)s [--children] [--conf SETTINGS] (SCRIPT | -m MODULE) [ARGUMENT ...]",
        description="Runs a Python program with ferro_alloc as its CUDA allocator.",
        allow_abbrev=False,
    )
    parser.add_argument("--conf", metavar="SETTINGS", help="as in FERRO_ALLOC_CONF")
    parser.add_argument(
        "--children",
        action="store_true",
        help="also for the Python processes that the program starts: sets FERRO_ALLOC for them",
    )
    parser.add_argument("-m", metavar="MODULE", help="run a module, as python -m does")
    options, program = split_program(argv)
    parsed = parser.parse_args(options)
    if program is None:
        parser.error("no program was given: name a script, or -m and a module")
    if not program.is_module and not Path(program.target).exists():
        parser.error(f"there is no file '{program.target}'")
    try:
        if parsed.children:
            check_children()  # before the import of torch, which takes seconds
        install(None if parsed.conf is None else Config.parse(parsed.conf))
    except (FerroError, ValueError) as error:
        return refuse(error)
    if parsed.children:
        pass_to_children(parsed.conf)
    program.run()
    return 0


def check_children() -> None:
    if not _variable.is_in_place():
        raise FerroError(
            "--children needs the installed package, whose file ferro_alloc.pth Python reads when "
            "it starts: run `pip install --no-build-isolation .`"
        )


def pass_to_children(settings: str | None) -> None:
    os.environ[_variable.NAME] = "1"
    if settings is not None:
        os.environ[ENVIRONMENT_VARIABLE] = settings


def simulate(argv: Sequence[str]) -> int:
    # Imported here, so that the other commands work in a package without the simulated GPU.
    from ferro_alloc import _simulate

    return _simulate.main(list(argv))


def replay(argv: Sequence[str]) -> int:
    from ferro_alloc.snapshots import _command

    return _command.main(list(argv))


def top(argv: Sequence[str]) -> int:
    from ferro_alloc import _top

    try:
        return _top.main(argv)
    except FerroError as error:
        return refuse(error)


def refuse(error: Exception) -> int:
    print(f"ferro_alloc: {error}", file=sys.stderr)
    return 1


def show_status(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ferro_alloc status",
        description="Reports what is installed, and whether ferro_alloc works on this machine.",
    )
    parser.parse_args(argv)
    current = status()
    print(current)
    return 1 if current.problem else 0


COMMANDS = {
    "run": run,
    "simulate": simulate,
    "replay": replay,
    "status": show_status,
    "top": top,
}


def main(argv: Sequence[str]) -> int:
    """Returns the exit status: 0 success, 1 a refusal in one sentence, 2 a wrong command line."""
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
