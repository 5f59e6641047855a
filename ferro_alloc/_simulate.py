"""The `simulate` command: runs a program on a simulated GPU and reports its memory."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ferro_alloc import sim
from ferro_alloc._errors import FerroError
from ferro_alloc._program import Program
from ferro_alloc._status import gib


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ferro_alloc simulate",
        usage="%(prog)s [OPTION ...] (SCRIPT | -m MODULE) [ARGUMENT ...]",
        description=(
            "Runs a PyTorch program on a simulated GPU, without any GPU, and reports the memory "
            "that it took. Kernels do nothing; PyTorch's operators on small tensors have results, "
            "computed on the host, and copies are real."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("--gpu", default="h100", help="the card, as in h100 (the default)")
    parser.add_argument("--count", type=int, default=1, help="how many of them (default 1)")
    parser.add_argument(
        "--memory", help="memory of each in place of the card's, in bytes or as in 24GiB"
    )
    parser.add_argument(
        "--mode",
        choices=sim.MODES,
        default="eager",
        help="when work is done: as it is submitted, as late as streams and events allow, or when "
        "a virtual clock has passed its end",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the adversarial order (default 0)")
    parser.add_argument(
        "--no-backing",
        dest="backing",
        action="store_false",
        help="device memory keeps no contents: reads give zeros, so that shapes that depend on "
        "computed data are the same in every run",
    )
    parser.add_argument("-m", dest="module", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def main(argv: list[str]) -> int:
    """The program's exit status; 1 when it raised, 2 for a wrong command line."""
    arguments = parser()
    parsed = arguments.parse_args(argv)
    words = parsed.program[1:] if parsed.program[:1] == ["--"] else parsed.program
    if not words:
        arguments.error("no program was given: name a script, or -m and a module")
    program = Program(words[0], is_module=parsed.module, arguments=words[1:])
    if not program.is_module and not Path(program.target).exists():
        arguments.error(f"there is no file '{program.target}'")
    try:
        sim.activate(
            gpu=parsed.gpu,
            count=parsed.count,
            memory=parsed.memory,
            mode=parsed.mode,
            seed=parsed.seed,
            backing=parsed.backing,
        )
    except FerroError as error:
        print(f"ferro_alloc: {error}", file=sys.stderr)
        return 1
    status = _run(program.run)
    print("\n".join(report()), file=sys.stderr)
    return status


def _run(run: Callable[[], None]) -> int:
    try:
        run()
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
            return 1
        return int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def report() -> list[str]:
    """What the program took of each device, in lines."""
    lines = ["", f"simulated {sim.description()}"]
    torch: Any = sys.modules.get("torch")
    used = torch is not None and torch.cuda.is_initialized()
    for index, memory in enumerate(sim.memory()):
        line = f"  device {index}: "
        if used:
            allocated = torch.cuda.max_memory_allocated(index)
            reserved = torch.cuda.max_memory_reserved(index)
            line += f"peak allocated {gib(allocated)}, peak reserved {gib(reserved)}, "
        share = 100 * memory.margin / memory.capacity
        line += f"peak in use {gib(memory.peak)} of {gib(memory.capacity)}, "
        line += f"margin {gib(memory.margin)} ({share:.0f} %)"
        lines.append(line)
    if sim.has_clock():
        time = sim.clock()
        busy = ", ".join(f"{seconds:.3f} s" for seconds in time.busy)
        lines.append(f"  time: {time.host:.3f} s, of it with work on the device {busy}")
    return [*lines, *(f"  {line}" for line in sim.not_simulated())]
