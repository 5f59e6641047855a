"""The `simulate` command: runs a program on a simulated GPU and reports whether it fits."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from ferro_alloc import sim
from ferro_alloc._errors import FerroError, check_file
from ferro_alloc._program import Program
from ferro_alloc._status import size_text
from ferro_alloc.fit import _allocators, _certainty, _misplaced, _ranks
from ferro_alloc.fit._at_once import AtOnce
from ferro_alloc.fit._page import load_views, save_views, views_of, write_page
from ferro_alloc.fit._progress import Progress
from ferro_alloc.fit._range import EXTRA_RUNS, add_range
from ferro_alloc.fit._recording import Recording
from ferro_alloc.fit._report import lines_of, remarks_of, verdict
from ferro_alloc.fit._result import (
    DOES_NOT_FIT,
    ENDED_BY_UNKNOWN,
    FITS_AS_FAR_AS_KNOWN,
    Outcome,
    Result,
    result_of,
)
from ferro_alloc.fit._runs import (
    Child,
    Question,
    answer_of,
    compare,
    comparison,
    conclusions,
    remarks,
    say,
    what_if,
)
from ferro_alloc.fit._stopping import (
    INTERRUPTED,
    STATUS,
    TERMINATED,
    Stopped,
    Stopping,
    received,
)
from ferro_alloc.fit._streams import Streams
from ferro_alloc.fit._together import TOGETHER
from ferro_alloc.sim import _missing, _sources
from ferro_alloc.sim.cards import CARDS, LIBRARIES, SIZE_FORMS, Card, find_card, parse_memory


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ferro_alloc simulate",
        usage="%(prog)s [OPTION ...] (SCRIPT | -m MODULE) [ARGUMENT ...]",
        description=(
            "Runs a PyTorch program on a simulated GPU, without any GPU, and reports whether it "
            "fits. Kernels do nothing; what follows from known data without large matrix products "
            "is computed on the host when the program reads it, and copies are real."
        ),
        epilog=f"Exit status: 0 fits, {DOES_NOT_FIT} does not fit, {FITS_AS_FAR_AS_KNOWN} fits as "
        "far as known: a size or a branch depended on values that were not computed, or on an "
        "operator that was refused, "
        f"{ENDED_BY_UNKNOWN} such a value ended the program, {STATUS['time limit']} the time limit "
        f"ended it, {STATUS['interrupted']} or {STATUS['terminated']} it was interrupted, else the "
        "program's own. "
        f"Cards: {', '.join(card.key for card in CARDS)}.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--gpu", default="h100", help="the card, as in h100 (the default) or 'RTX 4090'"
    )
    parser.add_argument(
        "--count", type=_whole_number, default=1, help="number of cards (default 1)"
    )
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
        type=_question,
        metavar="NAME=LOW..HIGH",
        help="find the largest value of an argument or variable of the program that fits, as in "
        "batch or batch=1..512",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="write a page of HTML, coloured by kind; with --compare of all three, side by side",
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write the result as JSON; - is stdout. In this name and in that of --report, {rank} "
        "becomes the number of the rank; torchrun's ranks need it",
    )
    parser.add_argument(
        "--mode",
        choices=sim.MODES,
        default="eager",
        help="when work is done: as it is submitted, as late as streams and events allow, or when "
        "a virtual clock has passed its end",
    )
    parser.add_argument(
        "--seed", type=_whole_number, default=0, help="seed of the order (default 0)"
    )
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
        help="whether operators on known data have real results (default: in eager mode, if "
        "memory keeps its contents)",
    )
    parser.add_argument(
        "--output",
        choices=(*_allocators.ALLOCATORS, "all"),
        help="with --compare: show the program's output under this allocator",
    )
    parser.add_argument(
        "--rows",
        choices=(*_certainty.ROWS, "both"),
        default="both",
        help="what masks are, and how many rows they and unique give, where their values were not "
        "computed: as of zeros; false, and as few rows as possible; true, and as many; or first as "
        "of zeros and then, where that differs, with both others (the default), whose range the "
        "verdict names",
    )
    # For such a run that ended early: only the rows are assumed.
    parser.add_argument("--rows-alone", action="store_true", help=argparse.SUPPRESS)
    # For the tries of --what-if, which must fit with all rows.
    parser.add_argument("--no-few-rows", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--time-limit",
        type=_seconds,
        metavar="SECONDS",
        help="end each run of the program after this time, and report what was seen so far",
    )
    # For the runs of --compare: the data of this run's part of the page.
    parser.add_argument("--views", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("-m", dest="module", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def main(argv: list[str]) -> int:
    """Returns 0 if it fits, `DOES_NOT_FIT`, or the program's own status; 1 and 2 are refusals."""
    arguments = parser()
    parsed, unknown = arguments.parse_known_args(argv)
    if unknown:
        arguments.error(_about_unknown(unknown[0], arguments))
    words = parsed.program[1:] if parsed.program[:1] == ["--"] else parsed.program
    if not words:
        arguments.error("no program was given: name a script, or -m and a module")
    program = Program(words[0], is_module=parsed.module, arguments=words[1:])
    if behind := _misplaced.noticed(program):
        print(
            f"ferro_alloc: {behind} stands behind the program, so the program gets it; options of "
            "simulate stand in front of the program",
            file=sys.stderr,
        )
    if not program.is_module and not Path(program.target).exists():
        arguments.error(f"there is no file '{program.target}'{_about_command(words)}")
    if program.is_module and not _has_module(program.target.partition(".")[0]):
        arguments.error(f"there is no module '{program.target}' in the path of {sys.executable}")
    if parsed.report is not None and parsed.what_if is not None:
        arguments.error("--report describes one run, or those of --compare: leave out --what-if")
    if parsed.compare and parsed.what_if is not None:
        arguments.error(
            "--what-if searches under one allocator: leave out --compare, and name it with "
            "--allocator"
        )
    if parsed.output is not None and not parsed.compare:
        arguments.error("--output is an option of --compare: a single run shows its output anyway")
    if _ranks.count() > 1 and (parsed.compare or parsed.what_if is not None):
        arguments.error(
            f"{'--compare' if parsed.compare else '--what-if'} runs the program several times, and "
            "ranks meet only once: start torchrun once for each run, as with --allocator"
        )
    if parsed.compare and parsed.allocator is not None:
        arguments.error("--compare runs the program under each allocator: leave out --allocator")
    if parsed.values and not parsed.backing:
        arguments.error(
            "--values needs memory that keeps its contents: leave out --values or --no-backing"
        )
    # Before torch is loaded. OpenMP's threads would spin while they wait for the next operator that
    # is computed.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    script = None if program.is_module else Path(program.target)
    try:
        if parsed.report is not None:
            parsed.report = Path(_ranks.file_of(parsed.report))
            check_file(parsed.report, others={"the program": script})
            # The program may change the directory.
            parsed.report = parsed.report.absolute()
        if parsed.json not in (None, "-"):
            parsed.json = _ranks.file_of(parsed.json)
            others = {"the program": script, "the file of --report": parsed.report}
            check_file(Path(parsed.json), "result", others)
            parsed.json = str(Path(parsed.json).absolute())
        card = find_card(parsed.gpu)
        memory = None if parsed.memory is None else parse_memory(parsed.memory)
        taken = card.context + LIBRARIES
        if memory is not None and memory <= taken:
            raise FerroError(
                f"the memory is {size_text(memory)}, and the CUDA context and libraries take "
                f"{size_text(taken)}: expected more memory than that"
            )
        child = Child(_options(parsed), ["-m"] * parsed.module + words)
        if parsed.compare:
            return _compare(parsed, program, child, card, memory or card.memory)
        if parsed.what_if is not None:
            with Stopping():
                answer = what_if(child, parsed.what_if)
            return _say(answer, answer_of(parsed.what_if, answer), parsed.json)
        # The program may change the directory and the environment.
        again = child.keep_surroundings()
        TOGETHER.join()
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
        return STATUS.get(received(), 1)
    except (Stopped, KeyboardInterrupt) as error:
        reason = TERMINATED if isinstance(error, Stopped) else INTERRUPTED
        print(f"ferro_alloc: it was {reason} without a result", file=sys.stderr)
        return STATUS[reason]
    rows = "zeros" if parsed.rows == "both" else parsed.rows
    rows += _certainty.ALONE if parsed.rows_alone else ""
    os.environ[_certainty.ROWS_VARIABLE] = rows
    measurement = Measurement(program, card, memory is not None, parsed.allocator, rows)

    def conclude(result: Result, recording: Recording) -> int:
        of_ranks: list[str] = []
        if parsed.rows == "both":
            extra = EXTRA_RUNS[:1] if parsed.no_few_rows else EXTRA_RUNS
            if _ranks.count() == 1:
                with Stopping():
                    add_range(again.run, result, parsed.time_limit, say, extra)
            of_ranks = _ranks.lines_of(result, extra)
        lines = [*lines_of(result), *of_ranks, *_others(result)]
        lines += _misplaced.lines_of(result["misplaced"])
        if parsed.report is not None:
            where = f"{program.name} on a simulated {card.name}, {result['allocator']}"
            title = f"{where}: {verdict(result)}"
            notes = remarks_of(result)
            lines.append(f"  {write_page(parsed.report, views_of(recording), title, notes)}")
        if parsed.views is not None:
            save_views(parsed.views, recording, result["allocator"])
        status = _say(result, lines, parsed.json)
        _ranks.leave_with(result)
        return status

    for_report = parsed.report is not None or parsed.views is not None
    try:
        return measurement.run(conclude, for_report, parsed.time_limit)
    except FerroError as error:
        print(f"ferro_alloc: {error}", file=sys.stderr)
        return 1


def _compare(
    parsed: argparse.Namespace, program: Program, child: Child, card: Card, memory: int
) -> int:
    """One run under each allocator, a table, and a page of all three."""
    shown = _allocators.ALLOCATORS if parsed.output == "all" else [parsed.output]
    with tempfile.TemporaryDirectory() as folder, Stopping():
        compared = compare(child, memory, shown, None if parsed.report is None else Path(folder))
        lines = comparison(compared)
        if parsed.report is not None:
            files = [Path(folder, name) for name in _allocators.ALLOCATORS]
            views = [view for file in files for view in load_views(file)]
            answer = "; ".join(conclusions(compared["runs"]))
            title = f"{program.name} on a simulated {card.name}: {answer}"
            lines.append(f"  {write_page(parsed.report, views, title, remarks(compared['runs']))}")
    return _say(compared, lines, parsed.json)


def _question(text: str) -> Question:
    """The argument of --what-if, which is not the program and has a name."""
    if not text.partition("=")[0].strip("-")[:1].isalpha() or Path(text).is_file():
        raise argparse.ArgumentTypeError(
            f"'{text}' is not the name of an argument or variable of the program: expected "
            "--what-if batch or --what-if batch=1..512, in front of the program"
        )
    try:
        return Question.parse(text)
    except FerroError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, and got '{text}'") from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(
            f"--time-limit needs a number of seconds above 0, as in 600, and got '{text}'"
        )
    return seconds


def _about_unknown(word: str, arguments: argparse.ArgumentParser) -> str:
    """The error about an option that the command does not have."""
    import difflib  # here, because only this refusal needs it

    name = word.partition("=")[0]
    known = [
        option
        for action in arguments._actions
        if action.help != argparse.SUPPRESS
        for option in action.option_strings
    ]
    near = difflib.get_close_matches(name, known, n=1)
    guess = f": did you mean {near[0]}?" if near else "; --help lists all."
    return f"there is no option {name}{guess} Options of the program stand behind it"


def _about_command(words: list[str]) -> str:
    """What to do about a program that is a command of the shell."""
    name, *rest = words
    if re.fullmatch(r"python[\d.]*", name) and rest:
        return f". Leave {name} out: simulate starts Python itself, as in simulate {rest[0]} ..."
    if name in ("torchrun", "accelerate", "deepspeed", "mpirun", "srun"):
        return f". Put it in front: {name} ... -m ferro_alloc simulate ... train.py"
    if shutil.which(name):
        return f": {name} is a command, and expected was a Python file, or -m and a module"
    return ""


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # it is loaded, without a specification
        return True


def _options(parsed: argparse.Namespace) -> list[str]:
    """The options of a child that runs the same program once."""
    options = [f"--gpu={parsed.gpu}", f"--count={parsed.count}", f"--mode={parsed.mode}"]
    options.append(f"--seed={parsed.seed}")
    options += [f"--memory={parsed.memory}"] if parsed.memory else []
    options += [f"--allocator={parsed.allocator}"] if parsed.allocator else []
    options += [] if parsed.backing else ["--no-backing"]
    options += [] if parsed.rows == "both" else [f"--rows={parsed.rows}"]
    options += [] if parsed.time_limit is None else [f"--time-limit={parsed.time_limit}"]
    return options + (
        [] if parsed.values is None else [f"--{'' if parsed.values else 'no-'}values"]
    )


def _say(result: Result, lines: list[str], file: str | None) -> int:
    print("\n".join(lines), file=sys.stderr)
    if file == "-":
        print(json.dumps(result), flush=True)
    elif file is not None:
        try:
            Path(file).write_text(json.dumps(result, indent=1) + "\n")
        except OSError as error:
            print(
                f"ferro_alloc: the result cannot be written to {file}: {error.strerror}",
                file=sys.stderr,
            )
    return int(result["exit_status"])


class Measurement:
    """One run of the program in this process, whose simulated GPU is active."""

    def __init__(
        self, program: Program, card: Card, own_memory: bool, allocator: str | None, rows: str
    ) -> None:
        self._program = program
        # The program may change the directory.
        self._text = _misplaced.text_of(program)
        self._card = card
        self._own_memory = own_memory
        self._allocator = allocator
        self._rows = rows

    def run(
        self,
        conclude: Callable[[Result, Recording], int],
        for_report: bool,
        time_limit: float | None,
    ) -> int:
        """Returns what `conclude` returns for the result. If the program does not end when it is
        stopped, `conclude` runs in another thread and the process ends."""
        if self._allocator is not None:
            _allocators.choose(self._allocator)
        recording = Recording(for_report)
        recording.arm()
        streams = Streams()
        began = time.monotonic()

        def report(status: int) -> int:
            """Of a program that ends its process at once, or does not end when it is stopped."""
            stopping.end()
            streams.restore()
            progress.end()
            reason = stopping.reason
            status = STATUS[reason] if reason else status
            place = _place_of_frame(sys._getframe()) or _place_of_main() if status else ""
            recording.finish()
            outcome = Outcome(status, stopped=reason, place=place)
            status = conclude(self._result(recording, outcome, began), recording)
            sys.stdout.flush()
            TOGETHER.leave()
            return status

        at_once = AtOnce(report)
        stopping = Stopping(
            time_limit, lambda: at_once.leave(STATUS[stopping.reason]), is_rank=_ranks.count() > 1
        )
        progress = Progress(f"simulating {self._card.name}")
        with progress, stopping, at_once:
            outcome, held = _run(self._program.run, stopping, streams)
            _ranks.keep_to_report()
        # The program's objects are examined once more before they are deleted.
        recording.finish()
        del held
        return conclude(self._result(recording, outcome, began), recording)

    def _result(self, recording: Recording, outcome: Outcome, began: float) -> Result:
        torch: Any = sys.modules.get("torch")
        name = self._allocator or "native"
        if torch is not None and torch.cuda.is_initialized():
            name = _allocators.in_force(torch)
        seconds = time.monotonic() - began
        result = result_of(
            *(recording, self._card, self._own_memory, name, outcome, self._rows, seconds)
        )
        status = outcome.status if isinstance(outcome.error, SystemExit) else 0
        result["misplaced"] = _misplaced.misplaced(self._program, self._text, status)
        return result


def _run(run: Callable[[], object], stopping: Stopping, streams: Streams) -> tuple[Outcome, object]:
    """Returns how the program ended, and its globals. Raises `FerroError` if it cannot start."""
    try:
        held = run()
        stopping.end()
        streams.restore()
        return Outcome(), held
    except SystemExit as stop:
        stopping.end()
        streams.restore()
        code = stop.code
        if code is not None and not isinstance(code, int):  # as Python does
            print(code, file=sys.stderr)
            return Outcome(1, stop, place=_place_of(stop)), stop
        # A process has only the last byte of it.
        status = (code or 0) & 0xFF
        place = _place_of(stop) if status else ""
        return Outcome(status, stop if status else None, place=place), stop
    except BaseException as error:
        stopping.end(error)
        streams.restore()
        place = _place_of(error)
        if stopping.reason:
            return Outcome(STATUS[stopping.reason], None, stopping.reason, place), error
        if not _has_started(error):
            raise FerroError(f"the program cannot be started: {error}") from None
        traceback.print_exception(error.with_traceback(_of_program(error)))
        return Outcome(1, error, place=place), None


def _has_started(error: BaseException) -> bool:
    """Whether an error is the program's, and not of Python's search for its first file."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    is_of_search = isinstance(error, ImportError) and files[-1:] == ["<frozen runpy>"]
    return not is_of_search or any(map(_sources.is_of_program, files))


def _of_program(error: BaseException) -> TracebackType | None:
    """The error's traceback from the program's first frame on, as Python prints it. An error in a
    file that does not compile has none."""
    trace = error.__traceback__
    while trace is not None and not _sources.is_of_program(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace if trace is not None or isinstance(error, SyntaxError) else error.__traceback__


def _place_of(error: BaseException) -> str:
    """The program's innermost line that the error passed, as in "train.py:12"; or empty."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if _sources.is_of_program(file):
            place = f"{Path(file).name}:{line}"
    return place


def _place_of_main() -> str:
    """The program's innermost line that the main thread is in; or empty."""
    return _place_of_frame(sys._current_frames().get(threading.main_thread().ident or 0))


def _place_of_frame(frame: FrameType | None) -> str:
    """The same of this frame and those around it."""
    while frame is not None and not _sources.is_of_program(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _others(result: Result) -> list[str]:
    """Further lines of the simulated GPU."""
    if not result["gpu_used"]:
        return []
    lines = []
    if not sim.description().endswith(", eager"):
        lines.append(f"  machine: {sim.description()}")
    if sim.has_clock():
        time = sim.clock()
        busy = ", ".join(f"{seconds:.3f} s" for seconds in time.busy)
        lines.append(f"  time: {time.host:.3f} s, of it with work on the device {busy}")
    missed = _missing.missed().lines(_certainty.decisive_places(result))
    return [*lines, *(f"  {line}" for line in missed)]
