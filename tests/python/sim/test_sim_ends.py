"""`simulate` on programs that are stopped or set their own limits, and its counts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ferro_alloc.fit import _runs, _stopping
from ferro_alloc.fit._lost import LostError
from ferro_alloc.fit._range import add_range
from tests.python.commands import command
from tests.python.sim.conftest import Simulate
from tests.python.sim.test_sim_certainty import run_of

MIB, GIB = 1 << 20, 1 << 30
ALLOCATORS = ("native", "expandable", "ferro_alloc")

INSTALLS = """\
import ferro_alloc
ferro_alloc.install(ferro_alloc.Config(memory_limit_mb=512))
import torch
kept = torch.empty(1 << 20, device="cuda")
print(ferro_alloc.status().config.memory_limit_mb)
"""
WAITS = """\
import time, torch
kept = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
print("waiting", flush=True)
time.sleep(600)
"""
REFUSES = """\
import time, torch
kept = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
while True:
    try:
        time.sleep(600)
    except BaseException:
        pass
"""


def test_a_time_limit_gives_a_partial_report(simulate: Simulate) -> None:
    done, result = simulate(WAITS, "--time-limit", "1")
    assert done.returncode == 124, done.stderr
    assert (result["verdict"], result["partial"]) == ("unknown", "time limit")
    assert result["devices"][0]["peak_allocated_bytes"] == GIB
    assert result["devices"][0]["kinds"] == {"other": GIB}
    assert "FITS as far as it ran, with" in done.stderr
    assert "the time limit ended it after 1 s, so this report is partial" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_a_program_that_does_not_end_at_its_time_limit(simulate: Simulate) -> None:
    done, result = simulate(REFUSES, "--time-limit", "1")
    assert done.returncode == 124, done.stderr
    assert result["partial"] == "time limit"
    assert result["devices"][0]["peak_allocated_bytes"] == GIB


def test_a_time_limit_that_is_not_reached_changes_nothing(simulate: Simulate) -> None:
    program = "import signal, torch\nassert torch.ones(1, device='cuda').item() == 1"
    done, result = simulate(program, "--time-limit", "600")
    assert (done.returncode, result["partial"]) == (0, ""), done.stderr


def test_a_result_without_a_folder_is_refused_before_the_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('runs')")
    done = command("simulate", "--json", str(tmp_path / "none" / "result.json"), str(script))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"there is no folder {tmp_path / 'none'}" in done.stderr


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("--json", "."), 1, "the result cannot be written to .: it is a folder; name a file"),
        (("--json", ""), 1, "the result cannot be written to .: it is a folder; name a file"),
        (("--report", "."), 1, "the report cannot be written to .: it is a folder; name a file"),
        (("--report", ""), 1, "the report cannot be written to .: it is a folder; name a file"),
        (("--time-limit", "0"), 2, "--time-limit needs a number of seconds above 0, as in 600"),
        (("--time-limit", "nan"), 2, "--time-limit needs a number of seconds above 0, as in 600"),
        (("--time-limit", "inf"), 2, "--time-limit needs a number of seconds above 0, as in 600"),
        (("--time-limit", "1e12"), 2, "--time-limit needs a number of seconds above 0, as in 600"),
        (("--time-limit", "long"), 2, "above 0, as in 600, and got 'long'"),
        (("--count", "two"), 2, "argument --count: expected a whole number, and got 'two'"),
        (("--compare", "--allocator", "native"), 2, "under each allocator: leave out --allocator"),
    ],
)
def test_a_wrong_option_is_refused_before_the_run(
    tmp_path: Path, options: tuple[str, ...], status: int, said: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('runs')")
    done = command("simulate", *options, str(script))
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--json", "@/train.py"), "the result cannot be written to @/train.py: that is the pro"),
        (("--report", "@/./train.py"), "train.py: that is the program; name another file"),
        (("--compare", "--report", "@/train.py"), "train.py: that is the program; name another"),
        (("--json", "@/model.py"), "@/model.py: that is a Python file; name another file"),
        (("--json", "@/a", "--report", "@/./a"), "@/a: that is the file of --report; name another"),
    ],
)
def test_no_result_replaces_the_program_or_another_result(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    script, model = tmp_path / "train.py", tmp_path / "model.py"
    for file in (script, model):
        file.write_text("print('runs')")
    words = tuple(word.replace("@", str(tmp_path)) for word in words)
    done = command("simulate", *words, str(script))
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert said.replace("@", str(tmp_path)) in done.stderr
    assert {file.read_text() for file in (script, model)} == {"print('runs')"}


TAKES_THE_PLACE = """\
import os, sys, torch
kept = torch.empty(1 << 20, device="cuda")
os.mkdir(sys.argv[1])
"""


def test_a_result_that_cannot_be_written_at_the_end_is_named(tmp_path: Path) -> None:
    script, found = tmp_path / "train.py", tmp_path / "result.json"
    script.write_text(TAKES_THE_PLACE)
    done = command("simulate", "--json", str(found), str(script), str(found))
    assert done.returncode == 0, done.stderr
    assert f"the result cannot be written to {found}: Is a directory" in done.stderr
    assert "Traceback" not in done.stderr


MOVES = """\
import os, sys, torch
kept = torch.empty(1 << 20, device="cuda")
os.chdir(sys.argv[1])
"""


def test_files_are_relative_to_the_directory_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, other = tmp_path / "train.py", tmp_path / "other"
    other.mkdir()
    script.write_text(MOVES)
    monkeypatch.chdir(tmp_path)
    options = ("--json", "result.json", "--report", "page.html")
    done = command("simulate", *options, str(script), str(other))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "result.json").exists()
    assert (tmp_path / "page.html").exists(), done.stderr
    assert list(other.iterdir()) == []


def lose(number: signal.Signals) -> dict[str, Any]:
    """The run of another process that a signal to the command killed, because it was starting."""
    _stopping.note_received("interrupted" if number == signal.SIGINT else "terminated")
    raise LostError(-number, [])


SIGNALS = pytest.mark.parametrize(
    ("number", "reason", "status"),
    [(signal.SIGTERM, "terminated", 143), (signal.SIGINT, "interrupted", 130)],
)


@SIGNALS
@pytest.mark.parametrize("place", ["expandable", "--memory"], ids=["second", "plenty"])
def test_a_signal_that_costs_a_run_ends_the_comparison_with_those_before(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, reason: str, status: int, place: str
) -> None:
    monkeypatch.setattr(_stopping, "_received", [])

    def run(self: _runs.Child, *words: str, **options: Any) -> dict[str, Any]:
        if place in words:
            lose(number)
        return run_of("fits" if place == "expandable" else "does not fit")

    monkeypatch.setattr(_runs.Child, "run", run)
    compared = _runs.compare(_runs.Child([], []), GIB)
    assert len(compared["runs"]) == 1
    assert (compared["partial"], compared["exit_status"]) == (reason, status)
    ended = f"the comparison was ended ({reason}): this report is partial"
    assert ended in "\n".join(_runs.comparison(compared))


@SIGNALS
def test_a_signal_that_costs_a_run_ends_the_search_with_those_before(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, reason: str, status: int
) -> None:
    monkeypatch.setattr(_stopping, "_received", [])

    def run(self: _runs.Child, *words: str, **options: Any) -> dict[str, Any]:
        return lose(number) if self.program[-1] == "16" else run_of("fits")

    monkeypatch.setattr(_runs.Child, "run", run)
    monkeypatch.setattr(_runs, "_is_same", lambda one, other: False)
    question = _runs.Question("batch")
    answer = _runs.what_if(_runs.Child([], ["train.py", "--batch", "4"]), question)
    assert (len(answer["tries"]), answer["exit_status"]) == (2, status)
    assert "the largest that fitted before is 8" in "\n".join(_runs.answer_of(question, answer))


@SIGNALS
def test_a_signal_that_costs_a_further_run_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, reason: str, status: int
) -> None:
    monkeypatch.setattr(_stopping, "_received", [])
    first = run_of("fits as far as known", learned="size") | {"seconds": 1}
    add_range(lambda *options: lose(number), first, None, lambda text: None)
    assert (first["partial"], first["exit_status"]) == (reason, status)


def test_a_command_that_noted_sigterm_is_not_ended_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the run that it ended, to report what that has seen."""
    monkeypatch.setattr(_stopping, "_received", [])
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with _stopping.Stopping():
        with pytest.raises(_stopping.Stopped):
            signal.raise_signal(signal.SIGTERM)
        _stopping.note_received("terminated")
        time.sleep(0.3)
        signal.raise_signal(signal.SIGTERM)
    assert _stopping.received() == "terminated"
    # They are ignored after that.
    for number, handler in before.items():
        signal.signal(number, handler)


SWALLOWS = """\
import os, signal, sys, time
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)
except:
    print("swallowed", flush=True)
time.sleep(30)
print("went on")
"""
CLEANS_UP = """\
import os, signal, time
try:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
    finally:
        try:
            1 / 0
        except ZeroDivisionError:
            time.sleep(0.5)
        print("inner", flush=True)
finally:
    time.sleep(0.5)
    print("outer", flush=True)
"""


@pytest.mark.parametrize(
    ("program", "printed"), [(SWALLOWS, "swallowed\n"), (CLEANS_UP, "inner\nouter\n")]
)
def test_sigterm_ends_a_program_that_swallows_it_once_and_lets_it_clean_up(
    simulate: Simulate, program: str, printed: str
) -> None:
    done, result = simulate(program)
    assert (done.returncode, result["partial"]) == (143, "terminated"), done.stderr
    assert done.stdout == printed


TAKES = "import torch\nkept = torch.empty(1 << 30, dtype=torch.uint8, device='cuda')\n"
AT_ONCE = {
    "in the program": "os._exit(STATUS)",
    "by another name": "from os import _exit\n_exit(STATUS)",
    "in a handler": "import atexit\ntry: sys.exit(9)\nfinally: os._exit(STATUS)",
    "in a thread": "threading.Timer(0.1, os._exit, (STATUS,)).start()\ntime.sleep(60)",
    "in a thread that the program does not wait for": """\
class Slow:
    def flush(self):
        if threading.current_thread() is not threading.main_thread(): time.sleep(1)
sys.stdout = Slow()
leave = os._exit
threading.Thread(target=leave, args=(STATUS,), daemon=True).start()
while os._exit == leave: time.sleep(0)
sys.exit()""",
    "in a child too": "if os.fork() == 0: os._exit(5)\nos.wait()\nos._exit(STATUS)",
}


@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.parametrize("way", AT_ONCE)
def test_a_program_that_ends_its_process_at_once_is_reported(
    simulate: Simulate, way: str, status: int
) -> None:
    program = f"import os, sys, threading, time\n{TAKES}{AT_ONCE[way]}\nprint('went on')\n"
    done, result = simulate(program.replace("STATUS", str(status)))
    assert (done.returncode, result["program_status"]) == (status, status), done.stderr
    assert result["verdict"] == ("unknown" if status else "fits")
    assert result["devices"][0]["peak_allocated_bytes"] == GIB
    assert done.stderr.count("simulated NVIDIA") == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    "call",
    [
        "os.execv(sys.executable, ",
        "os.execvp('python3', ",
        "os.execve(path=sys.executable, env=os.environ, argv=",
    ],
)
def test_a_program_that_replaces_itself_is_told_that_there_is_no_report(
    tmp_path: Path, call: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import os, sys\n{call}['python', '-c', 'print(3)'])\n")
    done = command("simulate", str(script), start_anew=True)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    assert done.stderr.count("the program replaces itself by os.execv") == 1


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("[1]", 1, "[1]"),
        ("0.0", 1, "0.0"),
        ("''", 1, ""),
        ("256", 0, ""),
        ("-1", 255, ""),
        ("True", 1, ""),
        ("None", 0, ""),
    ],
)
def test_the_status_of_an_exit_is_that_of_python(
    simulate: Simulate, code: str, status: int, said: str
) -> None:
    done, result = simulate(f"import sys\n{TAKES}sys.exit({code})")
    assert (done.returncode, result["program_status"]) == (status, status), done.stderr
    assert done.stderr.startswith(f"{said}\n")
    assert "Traceback" not in done.stderr


CHANGES = {
    "another file": "sys.stderr, sys.stdout = open('err.txt', 'w'), open('out.txt', 'w')",
    "none": "sys.stderr = sys.stdout = None",
    "closed": "sys.stderr.close(); sys.stdout.close()",
    "closed below": "os.close(1); os.close(2)",
    "an object": "sys.stderr = sys.stdout = object()",
}


@pytest.mark.parametrize("end", ["", "1 / 0", "sys.exit(3)", "os._exit(3)"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_report_needs_no_stream_of_the_program(tmp_path: Path, change: str, end: str) -> None:
    script = tmp_path / "train.py"
    moved = f"os.chdir({str(tmp_path)!r})"
    script.write_text(f"import os, sys\n{TAKES}{moved}\n{CHANGES[change]}\n{end}\n")
    done = command("simulate", "--json", "-", str(script))
    status = 0 if not end else 1 if "/" in end else 3
    assert done.returncode == status
    assert json.loads(done.stdout)["program_status"] == status
    assert done.stderr.count("simulated NVIDIA") == 1
    assert ("ZeroDivisionError: division" in done.stderr) == ("/" in end)


def test_a_program_may_remove_its_folder(simulate: Simulate) -> None:
    move = "import os, tempfile\nos.chdir(tempfile.mkdtemp())\nos.rmdir(os.getcwd())\n"
    done, result = simulate(f"{TAKES}{move}")
    assert (done.returncode, result["verdict"]) == (0, "fits"), done.stderr


BLOCKS = """\
import os, signal, threading, torch
import torch.distributed as dist
from datetime import timedelta
kept = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
store = dist.TCPStore("127.0.0.1", 0, is_master=True)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
store.wait(["never"], timedelta(seconds=60))
"""


@pytest.mark.parametrize("forks", [False, pytest.param(True, marks=pytest.mark.long)])
def test_sigterm_ends_a_program_that_waits_outside_of_python(
    simulate: Simulate, forks: bool
) -> None:
    """A rank of torchrun waits so for another one. Torchrun kills it after 30 s."""
    fork = "if os.fork() == 0: os.kill(os.getpid(), signal.SIGTERM)\nos.wait()\n" if forks else ""
    done, result = simulate(BLOCKS.replace("store =", f"{fork}store ="))
    assert (done.returncode, result["partial"]) == (143, "terminated"), done.stderr
    assert result["ended_at"] == f"train.py:{7 + 2 * forks}"
    assert done.stderr.count("so this report is partial") == 1
    assert result["devices"][0]["peak_allocated_bytes"] == 1 << 20


LOSES = """\
import time, torch
class Loses:
    def __del__(self):
        begin = time.monotonic()
        while time.monotonic() < begin + 2:
            time.sleep(0.01)
kept = Loses()
del kept
begin = time.monotonic()
try:
    time.sleep(600)
finally:
    print(time.monotonic() - begin < 1)
"""


def test_an_end_that_was_lost_in_a_callback_comes_again(simulate: Simulate) -> None:
    done, result = simulate(LOSES, "--time-limit", "1")
    assert (done.returncode, result["partial"]) == (124, "time limit"), done.stderr
    assert done.stdout == "True\n"
    assert "Traceback" not in done.stderr


HAS_CHILDREN = """\
import multiprocessing, time, torch
kept = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
child.start()
child.terminate()
child.join()
assert child.exitcode == -15, child.exitcode
"""


def test_forked_processes_end_by_their_signals(simulate: Simulate) -> None:
    done, _ = simulate(HAS_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("number", "status", "reason"),
    [
        pytest.param(signal.SIGTERM, 143, "terminated", marks=pytest.mark.long),
        (signal.SIGINT, 130, "interrupted"),
    ],
)
@pytest.mark.parametrize("compares", [False, pytest.param(True, marks=pytest.mark.long)])
def test_an_interrupted_run_gives_a_partial_report(
    tmp_path: Path, number: signal.Signals, status: int, reason: str, compares: bool
) -> None:
    script, found = tmp_path / "train.py", tmp_path / "result.json"
    script.write_text(f"{WAITS}")
    options = ["--compare", "--output", "native"] if compares else []
    words = ["--json", str(found), str(script)]
    process = subprocess.Popen(
        [sys.executable, "-m", "ferro_alloc", "simulate", *options, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    os.kill(process.pid, number)
    _, said = process.communicate()
    assert process.returncode == status, said
    result = json.loads(found.read_text())
    assert result["partial"] in (reason, "terminated")
    run = result["runs"][0] if compares else result
    assert run["devices"][0]["peak_allocated_bytes"] == GIB
    assert "report is partial" in said


COUNTED = """\
import torch
for _ in range(2):
    for _ in range(10):
        x = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.reset_accumulated_memory_stats()
    torch.cuda.reset_peak_memory_stats()
"""


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_counts_are_those_of_the_whole_run(simulate: Simulate, allocator: str) -> None:
    done, result = simulate(COUNTED, "--allocator", allocator)
    (device,) = result["devices"]
    assert device["allocations"] == 20, done.stderr
    # PyTorch counts no expandable segments.
    assert device["segments"] == (2 if allocator == "native" else 0)
    assert device["emptied_cache"] == 0
    calls = result["driver_calls"]
    one = "cuMemAlloc_v2" if allocator == "native" else "cuMemCreate"
    assert calls[one] == 2 if allocator == "native" else calls[one] >= 2


SHORT = """\
import torch
torch.cuda.set_per_process_memory_fraction(0.25)
kept = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
too_much = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
"""


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_the_programs_own_limit_is_named(simulate: Simulate, allocator: str) -> None:
    done, result = simulate(SHORT, "--memory", "4g", "--allocator", allocator)
    assert done.returncode == 12
    failure = result["out_of_memory"]
    assert failure["limit_bytes"] == GIB
    missing = failure["reserved_bytes"] + failure["requested_bytes"] - GIB
    assert missing >= 256 * MIB
    text = f"DOES NOT FIT in the program's own limit: short by at least {missing / GIB:.2f} GiB"
    assert text in done.stderr
    assert "1.00 GiB, the limit by set_per_process_memory_fraction()" in done.stderr


@pytest.mark.parametrize("words", [["train.py"], ["=1..5", "train.py"], ["1..5", "train.py"]])
def test_a_question_needs_a_name(tmp_path: Path, words: list[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("1\n")
    named = [str(script) if word == "train.py" else word for word in words]
    done = command("simulate", "--what-if", *named, "--batch", "4")
    assert done.returncode == 2
    assert "is not the name of an argument or variable of the program: expected" in done.stderr


def test_output_belongs_to_comparisons(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("1\n")
    done = command("simulate", "--output", "native", str(script))
    assert done.returncode == 2
    assert "--output is an option of --compare" in done.stderr


def test_what_if_and_a_comparison_exclude_each_other() -> None:
    done = command("simulate", "--compare", "--what-if", "batch", __file__, "--batch", "3")
    assert done.returncode == 2
    assert "--what-if searches under one allocator: leave out --compare" in done.stderr


SPEAKS = """\
import sys, torch
torch.empty(1, device="cuda")
print("loss", 1.5)
print("careful", file=sys.stderr)
"""


@pytest.mark.long
@pytest.mark.parametrize(("shown", "times"), [("native", 1), ("all", 3)])
def test_a_comparison_shows_the_output(simulate: Simulate, shown: str, times: int) -> None:
    done, _ = simulate(SPEAKS, "--compare", "--output", shown)
    assert done.stdout == times * "loss 1.5\n"
    assert done.stderr.count("careful") == times
    assert done.stderr.count("---- output under native") == 1


EARLY_HISTORY = """\
import torch
torch.cuda.memory._record_memory_history()
first = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
second = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
(events,) = torch.cuda.memory._snapshot()["device_traces"]
sizes = [event["size"] for event in events if event["action"] == "alloc"]
print(sizes == 2 * [1 << 20], all(event["frames"] for event in events))
"""


@pytest.mark.parametrize(
    "allocator",
    [pytest.param(each, marks=pytest.mark.long) for each in ALLOCATORS[:2]] + ["ferro_alloc"],
)
def test_a_history_from_before_the_first_use_of_cuda_is_kept(
    simulate: Simulate, allocator: str
) -> None:
    done, result = simulate(EARLY_HISTORY, "--allocator", allocator)
    assert done.stdout == "True True\n", done.stderr
    assert result["devices"][0]["kinds"] == {"other": 2 * MIB}


def test_a_program_that_installs_before_torch_chooses_the_settings(tmp_path: Path) -> None:
    """Torch must not be loaded beforehand."""
    script = tmp_path / "installs.py"
    script.write_text(INSTALLS)
    done = command("simulate", "--allocator", "ferro_alloc", str(script), start_anew=True)
    assert (done.returncode, done.stdout) == (0, "512\n"), done.stderr
