"""The `simulate` command: runs a program on a simulated GPU and reports whether it fits."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ferro_alloc import sim
from ferro_alloc._errors import FerroError, check_folder
from ferro_alloc._program import Program
from ferro_alloc._status import gib
from ferro_alloc.fit import _allocators
from ferro_alloc.fit._page import write_page
from ferro_alloc.fit._progress import Progress
from ferro_alloc.fit._recording import Recording
from ferro_alloc.fit._report import lines_of
from ferro_alloc.fit._result import DOES_NOT_FIT, Result, result_of
from ferro_alloc.fit._runs import Child, Question, answer_of, compare, comparison, what_if
from ferro_alloc.sim.cards import CARDS, LIBRARIES, SIZE_FORMS, Card, find_card, parse_memory


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ferro_alloc simulate",
        usage="%(prog)s [OPTION ...] (SCRIPT | -m MODULE) [ARGUMENT ...]",
        description=(
            "Runs a PyTorch program on a simulated GPU, without any GPU, and reports whether it "
            "fits. Kernels do nothing; PyTorch's operators on small tensors have results, computed "
            "on the host, and copies are real."
        ),
        epilog=f"Exit status: 0 fits, {DOES_NOT_FIT} does not fit, else the program's own. "
        f"Cards: {', '.join(card.key for card in CARDS)}.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--gpu", default="h100", help="the card, as in h100 (the default) or 'RTX 4090'"
    )
    parser.add_argument("--count", type=int, default=1, help="number of cards (default 1)")
    parser.add_argument("--memory", help=f"total memory instead of the card's: {SIZE_FORMS}")
    parser.add_argument(
        "--allocator",
        choices=_allocators.ALLOCATORS,
        help="the allocator to measure (default: the one that the program itself would have)",
    )
    parser.add_argument(
        "--compare", action="store_true", help="one run under each allocator, and a table"
    )
    parser.add_argument(
        "--what-if",
        metavar="NAME=LOW..HIGH",
        help="find the largest value of an argument or variable of the program that fits, as in "
        "batch or batch=1..512",
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write a page of HTML, coloured by kind"
    )
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON; - is stdout")
    parser.add_argument(
        "--mode",
        choices=sim.MODES,
        default="eager",
        help="when work is done: as it is submitted, as late as streams and events allow, or when "
        "a virtual clock has passed its end",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the order (default 0)")
    parser.add_argument(
        "--no-backing",
        dest="backing",
        action="store_false",
        help="device memory keeps no contents: reads return zeros, so shapes that depend on "
        "computed data are the same in every run",
    )
    parser.add_argument(
        "--values",
        action=argparse.BooleanOptionalAction,
        help="whether operators on small tensors have real results (default: in eager mode, if "
        "memory keeps its contents)",
    )
    parser.add_argument("-m", dest="module", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def main(argv: list[str]) -> int:
    """Returns 0 if it fits, `DOES_NOT_FIT`, or the program's own status; 1 and 2 are refusals."""
    arguments = parser()
    parsed = arguments.parse_args(argv)
    words = parsed.program[1:] if parsed.program[:1] == ["--"] else parsed.program
    if not words:
        arguments.error("no program was given: name a script, or -m and a module")
    program = Program(words[0], is_module=parsed.module, arguments=words[1:])
    if not program.is_module and not Path(program.target).exists():
        arguments.error(f"there is no file '{program.target}'")
    if parsed.report is not None and (parsed.compare or parsed.what_if):
        arguments.error("--report describes one run: leave out --compare and --what-if")
    try:
        if parsed.report is not None:
            check_folder(parsed.report)
        card = find_card(parsed.gpu)
        memory = None if parsed.memory is None else parse_memory(parsed.memory)
        taken = card.context + LIBRARIES
        if memory is not None and memory <= taken:
            raise FerroError(
                f"the memory is {gib(memory)}, and the CUDA context and libraries take {gib(taken)}"
            )
        child = Child(_options(parsed), ["-m"] * parsed.module + words)
        if parsed.compare:
            compared = compare(child, memory or card.memory)
            return _say(compared, comparison(compared), parsed.json)
        if parsed.what_if:
            question = Question.parse(parsed.what_if)
            answer = what_if(child, question)
            return _say(answer, answer_of(question, answer), parsed.json)
        sim.activate(
            gpu=card.key,
            count=parsed.count,
            memory=memory,
            context=taken,
            mode=parsed.mode,
            seed=parsed.seed,
            backing=parsed.backing,
            values=parsed.values,
        )
    except FerroError as error:
        print(f"ferro_alloc: {error}", file=sys.stderr)
        return 1
    result, recording = measure(
        program, card, memory is not None, parsed.allocator, parsed.report is not None
    )
    lines = [*lines_of(result), *_others(result)]
    if parsed.report is not None:
        lines.append(f"  {_write_page(parsed.report, recording, result)}")
    return _say(result, lines, parsed.json)


def _write_page(path: Path, recording: Recording, result: Result) -> str:
    try:
        card, allocator = result["card"]["name"], result["allocator"]
        return write_page(path, recording, f"GPU memory on a simulated {card}, {allocator}")
    except FerroError as error:
        return f"no report: {error}"


def _options(parsed: argparse.Namespace) -> list[str]:
    """The options of a child that runs the same program once."""
    options = [f"--gpu={parsed.gpu}", f"--count={parsed.count}", f"--mode={parsed.mode}"]
    options.append(f"--seed={parsed.seed}")
    options += [f"--memory={parsed.memory}"] if parsed.memory else []
    options += [f"--allocator={parsed.allocator}"] if parsed.allocator else []
    options += [] if parsed.backing else ["--no-backing"]
    return options + (
        [] if parsed.values is None else [f"--{'' if parsed.values else 'no-'}values"]
    )


def _say(result: Result, lines: list[str], file: str | None) -> int:
    print("\n".join(lines), file=sys.stderr)
    if file == "-":
        print(json.dumps(result), flush=True)
    elif file is not None:
        Path(file).write_text(json.dumps(result, indent=1) + "\n")
    return int(result["exit_status"])


def measure(
    program: Program, card: Card, own_memory: bool, allocator: str | None, for_report: bool
) -> tuple[Result, Recording]:
    """Runs the program in this process, whose simulated GPU is active."""
    if allocator is not None:
        _allocators.choose(allocator)
    recording = Recording(for_report)
    recording.arm()
    began = time.monotonic()
    with Progress(f"simulating {card.name}"):
        status, error, held = _run(program.run)
    # The program's objects are examined once more before they are deleted.
    recording.finish()
    del held
    torch: Any = sys.modules.get("torch")
    name = allocator or "native"
    if torch is not None and torch.cuda.is_initialized():
        name = _allocators.in_force(torch)
    seconds = time.monotonic() - began
    result = result_of(recording, card, own_memory, name, status, error, seconds)
    return result, recording


def _run(run: Callable[[], object]) -> tuple[int, BaseException | None, object]:
    """Returns the program's status, the error that ended it, and its globals."""
    try:
        return 0, None, run()
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
            return 1, None, stop
        return int(stop.code or 0), None, stop
    except BaseException as error:
        traceback.print_exc()
        return 1, error, None


def _others(result: Result) -> list[str]:
    """Further lines of the simulated GPU."""
    lines = []
    if not sim.description().endswith(", eager"):
        lines.append(f"  machine: {sim.description()}")
    if sim.has_clock():
        time = sim.clock()
        busy = ", ".join(f"{seconds:.3f} s" for seconds in time.busy)
        lines.append(f"  time: {time.host:.3f} s, of it with work on the device {busy}")
    return [*lines, *(f"  {line}" for line in result["not_simulated"])]
