"""The tools that run the tests: limits on progress, output, and the choice of parts."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.harness import cpp_program
from tests import programs
from tests.programs import ROOT
from tests.python import client_sides
from tools import execution, patience, progress, unchanged
from tools import test as tests_tool
from tools.patience import Patience
from tools.progress import Progress, Reading
from tools.results import Result
from tools.test import Part, Times

TESTING = ROOT / "docs" / "testing.md"
SLEEP = "import time; time.sleep(60)"
SPIN = "while True: pass"
POLL = """\
import time
while True:
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    time.sleep(0.9)
"""
SLOW = """\
import time
for number in range(12):
    print("line", number, flush=True)
    time.sleep(0.2)
"""


def start(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program], start_new_session=True)


@pytest.mark.parametrize(
    ("program", "idle_s", "processor_s", "said"),
    [
        (SLEEP, 1, 100, "in which it did nothing"),
        (POLL, 3, 2, "in which it did nothing"),
        (SPIN, 30, 0.5, "of processor time"),
    ],
    ids=["idle", "polls", "without_end"],
)
def test_a_process_without_progress_is_stopped(
    program: str,
    idle_s: float,
    processor_s: float,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "INTERVAL_S", 0.1)
    process = start(program)
    patient = Patience(process.pid, idle_s=idle_s, processor_s=processor_s)
    assert said in patience.wait(process, patient)
    assert process.returncode == -signal.SIGKILL


def test_a_failed_assertion_says_that_a_program_was_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "INTERVAL_S", 0.1)
    monkeypatch.setattr(patience, "Patience", partial(Patience, idle_s=1))
    done = patience.run([sys.executable, "-c", SLEEP])
    with pytest.raises(
        AssertionError, match=r"-9 \(stopped after 1 s in which it did nothing\) == 0"
    ):
        assert done.returncode == 0
    assert f"{done.returncode}" == "-9 (stopped after 1 s in which it did nothing)"


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "0"), (3, "3"), (-11, "-11 (ended by SIGSEGV)"), (-40, "-40 (ended by signal 40)")],
)
def test_exit_codes_name_signals(code: int, text: str) -> None:
    found = patience.ExitCode(code)
    assert (found, repr(found), str(found)) == (code, text, text)


def test_slow_progress_is_not_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs longer than the limit without progress, and uses hardly any processor time."""
    monkeypatch.setattr(patience, "INTERVAL_S", 0.1)
    log, seen = tmp_path / "log", []
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW], stdout=log.open("w"), start_new_session=True
    )
    began = time.monotonic()
    patient = Patience(process.pid, lambda: log.stat().st_size, idle_s=1.5)
    wrong = patience.wait(process, patient, lambda: seen.append(log.stat().st_size))
    assert (wrong, process.returncode) == ("", 0)
    assert time.monotonic() - began > 1.5
    assert seen[-1] > seen[0] > 0


def test_children_of_a_session_count(tmp_path: Path) -> None:
    spin = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SPIN!r}])"
    process = start(spin)
    try:
        while patience.processor_seconds(process.pid) < 0.5:
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        patience.stop(process.pid)
        process.wait()
    patience.stop(process.pid)  # the process has ended


DESCENDANT = f"""\
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


def test_descendants_in_other_sessions_are_stopped(tmp_path: Path) -> None:
    """Otherwise programs of tests outlive an interrupted run."""
    log = tmp_path / "log"
    process = subprocess.Popen(
        [sys.executable, "-c", DESCENDANT], stdout=log.open("w"), start_new_session=True
    )
    while not log.read_text().endswith("\n"):
        assert process.poll() is None
        time.sleep(0.05)
    descendant = os.pidfd_open(int(log.read_text()))
    patience.stop(process.pid)
    process.wait()
    assert select.select([descendant], [], [], 30)[0] == [descendant]
    os.close(descendant)


INTERRUPTED = f"""\
import os, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tools import execution
execution.stop_at_interrupt()
command = [sys.executable, "-c", {SLEEP!r}]
threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
with ThreadPoolExecutor(1) as pool:
    watched = lambda log: print("status", execution.execute(Path(log), command))
    list(pool.map(watched, [sys.argv[1]]))
"""


def test_an_interrupt_stops_commands_of_other_threads(tmp_path: Path) -> None:
    began = time.monotonic()
    words = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "log")]
    done = patience.run(words, programs.clean_environment())
    assert "KeyboardInterrupt" in done.stderr
    assert "status" not in done.stdout  # what was stopped has not failed
    assert time.monotonic() - began < 50  # the command takes 60 s


def test_lines_of_a_log_are_shown_and_the_status_is_the_commands(tmp_path: Path) -> None:
    lines: list[str] = []
    program = "print('one'); print('two'); raise SystemExit(3)"
    log = tmp_path / "log"
    assert not execution.execute(log, [sys.executable, "-c", program], watch=lines.append)
    assert lines == ["one", "two"]
    assert execution.tail(log) == "one\ntwo"


# ---- how far a log is

LOGS = {
    "ninja": ["[3/90] Building CXX object a.o", "[4/90] Linking"],
    "googletest": [
        "[==========] Running 4 tests from 2 test suites.",
        "[ RUN      ] Suite.Right",
        "[       OK ] Suite.Right (0 ms)",
        "[ RUN      ] Suite.Wrong",
        "suite_test.cpp:5: Failure",
        "[  FAILED  ] Suite.Wrong (1 ms)",
        "[  SKIPPED ] Suite.Left (0 ms)",
        "[  FAILED  ] Seeds/Suite.Programs/29, where GetParam() = 29 (4 ms)",
        "[  FAILED  ] Suite.Wrong",
    ],
    "pytest": [
        "collecting ... collected 12 items / 4 deselected / 8 selected",
        "tests/test_a.py::test_one PASSED                                  [ 12%]",
        "tests/test_a.py::test_two[a b] FAILED                             [ 25%]",
        "tests/test_a.py::test_three SKIPPED (no GPU)                      [ 37%]",
    ],
    "workers": [
        "2 workers [8 items]",
        "tests/test_a.py::test_one ",
        "[gw0] [ 12%] PASSED tests/test_a.py::test_one ",
        "[gw1] [ 25%] FAILED tests/test_a.py::test_two[a b] ",
    ],
}
FOUND = {
    "ninja": (4, 90, "compiled", []),
    "googletest": (4, 4, "tests", ["Suite.Wrong", "Seeds/Suite.Programs/29"]),
    "pytest": (3, 8, "tests", ["tests/test_a.py::test_two[a b]"]),
    "workers": (2, 8, "tests", ["tests/test_a.py::test_two[a b]"]),
}


@pytest.mark.parametrize("kind", LOGS)
def test_logs_show_progress_and_failures(kind: str) -> None:
    reading = Reading()
    failed = [name for line in LOGS[kind] if (name := reading.read(line)[0])]
    assert (reading.done, reading.of, reading.unit, failed) == FOUND[kind]


def test_a_failure_is_printed_at_once_with_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = Progress("release", 10, 0)
    progress.for_tests_of(lambda name: f"unit_tests --gtest_filter={name}")
    for line in LOGS["googletest"][:6]:
        progress.watch(line)
    said = capsys.readouterr().out
    assert "suite_test.cpp:5: Failure\nFAILED Suite.Wrong\n" in said
    assert "  unit_tests --gtest_filter=Suite.Wrong\n" in said
    assert "Suite.Right" not in said


def test_time_left_follows_the_tests_that_are_done_once_it_is_late() -> None:
    progress = Progress("python", 100, 0)
    assert progress.left(30) == 70
    assert progress.left(130) == 0
    progress.watch("2 workers [10 items]")
    for number in range(5):
        progress.watch(f"[gw0] [ 10%] PASSED tests/test_a.py::test_{number} ")
    assert progress.left(40) == 60
    assert progress.left(300) == 300


def test_a_test_that_takes_long_is_named_while_its_log_is_silent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.progress.EVERY_S", {True: 0.0, False: 0.0})
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = Progress("release", 300, 0)
    for line in LOGS["googletest"][:2]:
        progress.watch(line)
    now[0] += 50
    progress.tick()
    now[0] += 50
    progress.tick()
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "  release: 0 of 4 tests, 4 min left",
        "  release: 0 of 4 tests, 3 min left, in Suite.Right for 2 min",
    ]


def test_logs_side_by_side_are_counted_together(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("release", 10, 0)
    progress.watch("[3/90] Building CXX object a.o")
    first, second = progress.side_by_side(2)
    for line in ("[==========] Running 6 tests from 2 test suites.", "[ RUN      ] One.Fails"):
        first(line)
    for line in ("[==========] Running 4 tests from 1 test suite.", "[ RUN      ] Two.Is"):
        second(line)
    first("one_test.cpp:5: Failure")
    second("[       OK ] Two.Is (0 ms)")
    first("[  FAILED  ] One.Fails (0 ms)")
    assert progress.left(40) == 160
    assert progress.failed == ["One.Fails"]
    assert "one_test.cpp:5: Failure\nFAILED One.Fails\n" in capsys.readouterr().out


def test_a_test_whose_process_died_has_failed(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("release", 10, 0)
    progress.for_tests_of(lambda name: f"unit_tests --gtest_filter={name}")
    first, second = progress.side_by_side(2)
    for line in (*LOGS["googletest"][:3], "[ RUN      ] One.Crashes"):
        first(line)
    second("[ RUN      ] Two.Is")
    progress.fail_running(0)
    assert progress.failed == ["One.Crashes"]
    assert "  unit_tests --gtest_filter=One.Crashes\n" in capsys.readouterr().out


def test_a_test_that_hung_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("release", 10, 0)
    for line in (*LOGS["googletest"][:2], "", "stopped after 900 s in which it did nothing"):
        progress.watch(line)
    progress.fail_running()
    said = capsys.readouterr().out
    assert "stopped after 900 s in which it did nothing\nFAILED Suite.Right\n" in said


def test_a_worker_that_crashes_prints_into_the_line_of_its_test() -> None:
    reading = Reading()
    for line in ("2 workers [8 items]", *(f"tests/test_a.py::test_one{each} " for each in ("", 2))):
        reading.read(line)
    line = "[gw1] [ 25%] FAILED tests/test_a.py::test_one2 Fatal Python error: Segmentation fault"
    assert reading.read(line)[0] == "tests/test_a.py::test_one2"
    assert reading.running == ["tests/test_a.py::test_one"]


SUITES = {
    "test_fails.py": "def test_wrong():\n    print('aside')\n    assert 1 + 1 == 3, 'planted'\n",
    "test_lacks.py": "import no_such_module\n",
    "test_passes.py": "def test_right():\n    pass\n",
}


@pytest.mark.parametrize("arguments", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_the_text_of_a_failure_of_pytest_is_shown_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    for name, text in SUITES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").touch()
    log, failures = tmp_path / "log", tmp_path / "failures.jsonl"
    progress = Progress("python", 100, 0)
    progress.for_tests_of(lambda name: f"pytest {name}", failures)
    shown = ["-v", "-p", "no:cacheprovider", "-p", "tests.conftest"]
    more = ["--continue-on-collection-errors", *arguments]
    command = [sys.executable, "-m", "pytest", *shown, *more]
    env = {**programs.clean_environment(), "FERRO_TEST_FAILURES": str(failures)}
    assert not execution.execute(log, command, tmp_path, env, progress.watch)
    said = capsys.readouterr().out
    assert "ModuleNotFoundError: No module named 'no_such_module'" in said
    assert "FAILED test_lacks.py\n  pytest test_lacks.py\n" in said
    assert "AssertionError: planted" in said
    assert "aside" in said
    assert "FAILED test_fails.py::test_wrong\n  pytest test_fails.py::test_wrong\n" in said
    assert progress.failed == ["test_lacks.py", "test_fails.py::test_wrong"]


def test_a_build_waits_for_a_benchmark_that_builds_in_its_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    tree = tmp_path / "cpp-release"
    monkeypatch.setattr(tests_tool, "BUILD", tmp_path)
    monkeypatch.setattr(cpp_program, "TREE", tree)
    setup = SimpleNamespace(torch_free_objects=lambda: "objects", cuda_include=lambda _: "include")
    monkeypatch.setattr("importlib.import_module", lambda _: setup)

    def note(step: str) -> bool:
        steps.append(step)
        return True

    monkeypatch.setattr(tests_tool, "configure", lambda preset: note("configured"))
    monkeypatch.setattr(tests_tool, "execute", lambda *_: note("built"))

    def build() -> None:
        assert tests_tool.build("release", ["unit_tests"], Progress("release", 1, 0))

    def run(command: Sequence[str]) -> str:
        """Instead of each command of the benchmark's build."""
        if not thread.ident:
            thread.start()
        thread.join(0.2)
        steps.append("benchmark")
        return ""

    thread = threading.Thread(target=build)
    monkeypatch.setattr(cpp_program, "run", run)
    cpp_program.build("replay")
    thread.join()
    assert steps == ["benchmark", "benchmark", "configured", "built"]


def test_a_test_that_crashes_fails_once_and_the_others_run(tmp_path: Path) -> None:
    text = "import os\n" + "".join(
        f"def test_{number}(): {'os.kill(os.getpid(), 11)' if number in (1, 5) else 'pass'}\n"
        for number in range(6)
    )
    for name in ("test_a.py", "test_b.py", "test_c.py"):
        (tmp_path / name).write_text(text if name != "test_c.py" else "def test_last(): pass\n")
    (tmp_path / "pytest.ini").touch()
    words = ["-v", "-n", "2", "-p", "no:cacheprovider", "-p", "tests.conftest"]
    done = programs.run([sys.executable, "-m", "pytest", *words], folder=tmp_path)
    assert "4 failed, 9 passed" in done.stdout, done.stdout


def test_a_run_that_was_given_up_says_what_did_not_end() -> None:
    """Tests that end their workers are repeated, and may end the whole run."""
    progress = Progress("python", 10, 0)
    for line in LOGS["workers"]:
        progress.watch(line)
    assert not progress.have_all_run()
    for line in 6 * ["[gw2] [ 30%] FAILED tests/test_a.py::test_dies "]:
        progress.watch(line)
    assert not progress.have_all_run()
    progress.watch("tests/test_b.py::test_hangs[x y] ")
    progress.fail_running()
    names = ["tests/test_a.py::test_two[a b]", "tests/test_a.py::test_dies"]
    assert progress.failed == [*names, "tests/test_b.py::test_hangs[x y]"]
    for number in range(5):
        progress.watch(f"[gw0] [ 90%] PASSED tests/test_c.py::test_{number} ")
    assert progress.have_all_run()


# ---- which parts run


@pytest.fixture
def times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Times:
    monkeypatch.setattr(tests_tool, "TIMES", tmp_path / "times.json")
    monkeypatch.setattr(tests_tool, "PASSED", unchanged.Passed(tmp_path / "passed.json"))
    return Times()


def passing(name: str, seconds: float) -> Part:
    def run(empty: Result, progress: Progress) -> Result:
        return Result(empty.name, passed=1)

    return Part(name, "nothing", run, seconds)


def test_parts_that_do_not_fit_are_left_out_except_sanitizers(times: Times) -> None:
    parts = [passing("asan", 900), passing("fuzz", 900), passing("tsan", 900), passing("long", 20)]
    results = tests_tool.run_parts(parts, times, minutes_left=1)
    assert [(result.name, result.passed) for result in results] == [
        ("asan", 1),
        ("fuzz", 0),
        ("tsan", 1),
        ("long", 1),
    ]
    # The first part took no time, so fewer seconds are expected of the second than it lists.
    (asan,) = tests_tool.choose_parts(["asan"])
    usual = tests_tool.USUAL_SECONDS
    takes = progress.minutes(900 * usual / (usual + asan.seconds))
    assert list(results[1].skips) == [f"left out: takes {takes}, and 60 s are left"]


def test_what_failed_is_listed_at_the_end(
    times: Times, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(empty: Result, progress: Progress) -> Result:
        progress.for_tests_of(lambda name: f"unit_tests --gtest_filter={name}")
        progress.watch("[  FAILED  ] One.Fails (0 ms)")
        progress.fail("a.cpp", "clang-tidy a.cpp")
        return Result(empty.name, passed=3, failed=2)

    def fail_without_a_name(empty: Result, progress: Progress) -> Result:
        return Result(empty.name, failed=1)

    monkeypatch.setattr(tests_tool, "LOGS", Path("logs"))
    parts = [
        Part("release", "x", fail, 1),
        passing("mypy", 1),
        Part("ruff", "x", fail_without_a_name, 1),
    ]
    results = tests_tool.run_parts(parts, times, minutes_left=60)
    capsys.readouterr()
    tests_tool.show(results)
    assert capsys.readouterr().out.partition("failed:\n")[2].splitlines() == [
        "  release: unit_tests --gtest_filter=One.Fails",
        "  release: clang-tidy a.cpp",
        "  ruff: make test-all PARTS=ruff; what it printed is above, and in logs",
    ]


def test_parts_are_expected_to_take_as_long_as_before(times: Times) -> None:
    release, python = (
        next(p for p in tests_tool.TEST if p.name == n) for n in ("release", "python")
    )
    assert times.expect(release) == release.seconds
    times.note(release, 3 * release.seconds, is_complete=True)
    assert times.expect(release) == 3 * release.seconds
    assert times.expect(python) == 3 * python.seconds
    # What ran because of one changed file says nothing about other runs.
    times.note(python, 1, is_complete=False)
    (asan,) = tests_tool.choose_parts(["asan"])
    assert times.expect(python) == 3 * python.seconds
    assert Times().expect(asan) == 3 * asan.seconds


def test_a_fast_part_does_not_halve_the_times_of_others(times: Times) -> None:
    """A compiler's cache makes single parts much faster than they are elsewhere."""
    client, python = (next(p for p in tests_tool.TEST if p.name == n) for n in ("client", "python"))
    times.note(client, 1, is_complete=True)
    assert times.expect(python) > 0.9 * python.seconds


def test_only_tests_that_have_not_passed_are_expected_to_take_time(
    times: Times, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (python,) = tests_tool.choose_parts(["python"])
    (release,) = tests_tool.choose_parts(["release"])
    files = {ROOT / f"tests/test_{number}.py": str(number) for number in range(4)}
    monkeypatch.setattr(tests_tool, "digests", lambda marker: files)
    monkeypatch.setattr(tests_tool, "gpu_count", lambda: 0)
    passed = unchanged.Passed(tmp_path / "passed.json")
    monkeypatch.setattr(tests_tool, "PASSED", passed)
    times.note(python, 100, is_complete=True)
    times.note(release, 50, is_complete=True)
    assert (times.expect(python), times.expect(release)) == (100, 50)
    passed.note({tests_tool.name_of("python", path): files[path] for path in list(files)[:3]})
    passed.note({"release": tests_tool.digest_of(release)})
    assert (times.expect(python), times.expect(release)) == (25, 0)


def test_parts_can_be_named() -> None:
    assert [part.name for part in tests_tool.choose_parts(["fuzz", "sanitizers"])] == [
        "asan",
        "tsan",
        "fuzz",
    ]
    with pytest.raises(SystemExit, match=r"expected parts of clang-format, .*; got nonsense"):
        tests_tool.choose_parts(["nonsense", "asan"])


def test_names_of_parts_are_unique_and_groups_name_parts() -> None:
    names = [part.name for part in (*tests_tool.TEST, *tests_tool.REST)]
    assert len(set(names)) == len(names)
    assert set(tests_tool.ALWAYS) == {*names[: len(tests_tool.TEST)], "asan", "tsan"}
    assert {each for group in tests_tool.GROUPS.values() for each in group} <= set(names)


# ---- what need not run again


def names_of(paths: set[Path]) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in paths}


def test_a_test_reads_its_programs_and_what_these_import() -> None:
    found = names_of(unchanged.read_by(ROOT / "tests/python/graphs/test_graph_captures.py"))
    read = ("features_captures.py", "features_failed_captures.py", "graphs_every_fault.py")
    assert {f"tests/python/graphs/{name}" for name in read} < found
    # Files of the test, of a program, of all tests, and of the package with the built libraries.
    others = ("torch_programs.py", "feature_checks.py", "every_fault.py")
    assert {f"tests/python/{name}" for name in others} < found
    assert {"tests/fork_server.py", "tools/patience.py", "tools/gpu.py"} < found
    assert {"ferro_alloc/graphs/__init__.py", "ferro_alloc/sim/lib/libcuda.so.1"} < found
    assert any(name.startswith("ferro_alloc/_C.") and name.endswith(".so") for name in found)
    assert not any("snapshots/test_" in name or "seeded" in name for name in found)
    assert not any(name.startswith(("docs/", "benchmarks/", "csrc/")) for name in found)


def test_folders_are_read_whose_names_stand_in_a_test() -> None:
    found = names_of(unchanged.read_by(ROOT / "tests/python/seeded/test_torch_adversarial.py"))
    assert "tests/python/seeded/seeded_late.py" in found
    assert any(name.startswith("tests/mutants/") for name in found)
    assert any(name.startswith("csrc/") for name in found)
    found = names_of(unchanged.read_by(ROOT / "tests/python/clients/test_benchmarks.py"))
    assert {"benchmarks/models/workloads.py", "CMakeLists.txt"} < found


@pytest.mark.parametrize(
    ("test", "source"),
    [
        ("features/test_torch_interface.py", "tests/cpp/torch/"),
        ("libraries/test_preloaded.py", "tests/cpp/preload/preloaded.cpp"),
        ("clients/test_versions.py", "README.md"),
    ],
)
def test_sources_and_pages_that_a_test_names_are_read(test: str, source: str) -> None:
    found = names_of(unchanged.read_by(ROOT / "tests/python" / test))
    assert any(name.startswith(source) for name in found)


def test_tests_without_the_extension_do_not_read_it() -> None:
    marked = [path for path in ROOT.glob("tests/python/*/test_*.py") if is_marked(path)]
    assert len(marked) > 5
    for path in marked:
        found = names_of(unchanged.read_by(path))
        assert not any(name.startswith("ferro_alloc/_C.") for name in found if "pyi" not in name)
        assert {"ferro_alloc/_C.pyi", "ferro_alloc/sim/lib/libcuda.so.1"} < found


def is_marked(path: Path) -> bool:
    return unchanged.NO_EXTENSION in path.read_text()


def test_a_test_of_the_repository_reads_everything() -> None:
    found = names_of(unchanged.read_by(ROOT / "tests/repo/test_docs.py"))
    assert {"README.md", "docs/testing.md", "Makefile", "csrc/ferro/base/bytes.h"} < found


def test_a_test_of_the_repository_needs_no_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unchanged, "ROOT", tmp_path)
    for name in ("README.md", "docs/testing.md", "build/python", ".venv/pyvenv.cfg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = unchanged.read_by(tmp_path / "repo" / "test_docs.py")
    assert found == {tmp_path / "README.md", tmp_path / "docs/testing.md"}


def test_only_passed_parts_with_the_same_files_are_known(tmp_path: Path) -> None:
    kept = tmp_path / "folder" / "passed.json"
    passed = unchanged.Passed(kept)
    passed.note({"a": "1", "b": "1", "c": "1"})
    passed.note({"a": "2"}, ["b", "never"])
    for known in (passed, unchanged.Passed(kept)):
        assert [known.is_known(*each) for each in (("a", "1"), ("a", "2"), ("b", "1"))] == [
            False,
            True,
            False,
        ]
        assert known.is_known("c", "1")
    passed.forget()
    assert not passed.is_known("c", "1")


@pytest.mark.parametrize("text", ["", '{"a": "1', "[1]"])
def test_a_damaged_record_is_an_empty_one(tmp_path: Path, text: str) -> None:
    kept = tmp_path / "passed.json"
    kept.write_text(text)
    passed = unchanged.Passed(kept)
    assert not passed.is_known("a", "1")
    passed.note({"a": "1"})
    assert unchanged.Passed(kept).is_known("a", "1")


def times_in_docs() -> dict[str, str]:
    """The last cell of each row of the first table, by its command."""
    rows = re.findall(r"^\| `([^`]*)` \|.*\| ([^|]*) \|$", TESTING.read_text(), re.MULTILINE)
    return dict(rows)


def seconds_in_docs() -> dict[str, float]:
    found: dict[str, float] = {}
    for command, text in times_in_docs().items():
        names = re.findall(r'PARTS="?([^"]*)"?$', command)
        if names and names != ["list"]:
            times = re.findall(r"[\d,]+(?= s| and)", text)
            found |= {
                name: float(seconds.replace(",", ""))
                for name, seconds in zip(names[0].split(), times, strict=True)
            }
    return found


def test_the_docs_and_the_parts_give_the_same_times() -> None:
    assert seconds_in_docs() == {part.name: float(part.seconds) for part in tests_tool.REST}


def test_the_time_of_all_parts_is_their_sum() -> None:
    times = times_in_docs()
    first = re.match(r"(\d+) min (\d+) s from nothing", times["make test"])
    whole = re.match(r"about (\d+) min, of it (\d+) estimated", times["make test-all"])
    assert first
    assert whole
    seconds = 60 * int(first[1]) + int(first[2]) + sum(seconds_in_docs().values())
    estimated = {name: text for name, text in times.items() if "s, estimated" in text}
    assert list(estimated) == ["PARTS=wheels"]
    minutes = [round(each / 60) for each in (seconds, seconds_in_docs()["wheels"])]
    assert [int(whole[1]), int(whole[2])] == minutes


def test_two_runs_do_not_share_their_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tests_tool, "BUILD", tmp_path)
    refused = pytest.raises(SystemExit, match="another run tests this checkout")
    with tests_tool.only_run(), refused, tests_tool.only_run():
        pass
    with tests_tool.only_run():
        pass


def test_digests_follow_names_and_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unchanged, "ROOT", tmp_path)
    seen = set()
    for name, text in (("a", "one"), ("b", "one"), ("c", "two")):
        (tmp_path / name).write_text(text)
        seen.add(unchanged.digest([tmp_path / name]))
    assert len(seen) == 3
    assert unchanged.digest([tmp_path / "a", tmp_path / "c"]) == unchanged.digest(
        [tmp_path / "c", tmp_path / "a", tmp_path / "c"]
    )


def test_digests_follow_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A test without its program was skipped, and a variable may choose some of the tests."""
    seen = []

    def look() -> None:
        unchanged.machine.cache_clear()
        seen.append(unchanged.digest([]))

    for name in ("GTEST_FILTER", "PYTEST_ADDOPTS", "PYTORCH_NO_CUDA_MEMORY_CACHING"):
        with monkeypatch.context() as changed:
            changed.setenv(name, "x")
            look()
    with monkeypatch.context() as changed:
        (tmp_path / "chromium").touch(mode=0o755)
        changed.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        look()
    look()
    assert len(set(seen)) == 5
    look()
    assert seen[-1] == seen[-2]


def test_the_cpp_parts_read_what_compiles_their_objects() -> None:
    (release,) = tests_tool.choose_parts(["release"])
    assert {"csrc/ferro", "setup.py", "compiling.py"} < set(release.reads)


def test_a_part_that_passed_is_not_repeated_until_a_file_changes(
    times: Times, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tests_tool, "PASSED", unchanged.Passed(tmp_path / "passed.json"))
    monkeypatch.setattr(unchanged, "ROOT", tmp_path)
    outcomes = iter([Result("x", failed=1), Result("x", passed=1), Result("x", passed=2)])
    part = replace(passing("x", 1), run=lambda empty, progress: next(outcomes), reads=("file",))
    found = []
    for text in ("one", "one", "one", "two"):
        (tmp_path / "file").write_text(text)
        unchanged._digest_of.cache_clear()
        (result,) = tests_tool.run_parts([part], times, minutes_left=9)
        found.append((result.passed, result.failed, list(result.skips)))
    assert found == [(0, 1, []), (1, 0, []), (0, 0, [unchanged.REASON]), (2, 0, [])]


# ---- programs


def write(folder: Path, text: str) -> Path:
    path = folder / "program.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize("start_anew", [False, True], ids=["forked", "started"])
def test_a_program_is_a_separate_process(tmp_path: Path, start_anew: bool) -> None:
    text = (
        "import os, sys, atexit\n"
        "atexit.register(print, 'ended', flush=True)\n"
        "print(__name__, sys.argv[1:], sys.path[0], os.environ['FERRO_SIM_TURN'])\n"
        "print('aside', file=sys.stderr)\n"
        "print(sys.stdin.read() == '')\n"
        "from ferro_alloc import sim\n"
        "print(sim.description())\n"
        "import torch\n"
        "print(torch.cuda.device_count(), torch.ones(2, device='cuda').sum().item())\n"
        "sys.exit(3)\n"
    )
    done = programs.run_simulated(
        [write(tmp_path, text), "a", "b c"],
        {"memory": "1GiB", "count": 2},
        {"FERRO_SIM_TURN": "0.5"},
        start_anew,
    )
    assert done.returncode == 3
    assert done.stdout.splitlines() == [
        f"__main__ ['a', 'b c'] {tmp_path} 0.5",
        "True",
        "2 x h100 with 1.00 GiB of memory, eager",
        "2 2.0",
        "ended",
    ]
    assert done.stderr == "aside\n"


IMPORTS = """\
import subprocess, sys
import torch
try:
    import ferro_alloc._C
    print("imported")
except ImportError:
    print("refused")
if sys.argv[1:] == []:
    subprocess.run([sys.executable, *sys.argv, "child"])
"""


@pytest.mark.no_extension
@pytest.mark.parametrize("start_anew", [False, True], ids=["forked", "started"])
def test_programs_without_the_extension_cannot_import_it(tmp_path: Path, start_anew: bool) -> None:
    done = programs.run_simulated(
        [write(tmp_path, IMPORTS)], {"memory": "1GiB"}, start_anew=start_anew
    )
    assert done.stdout.split() == ["refused"] * 2, done.stderr


def test_other_programs_can_import_it(tmp_path: Path) -> None:
    done = programs.run_simulated([write(tmp_path, IMPORTS)], {"memory": "1GiB"})
    assert done.stdout.split() == ["imported"] * 2, done.stderr


def test_programs_leave_nothing_to_the_next(tmp_path: Path) -> None:
    first = "import os, torch\nos.environ['FERRO_LEFT'] = '1'\ntorch.left = 1\nos.chdir('/')\n"
    second = (
        "import os, torch\nprint('FERRO_LEFT' in os.environ, hasattr(torch, 'left'), os.getcwd())"
    )
    for memory in ("1GiB", "2GiB"):
        assert programs.run_simulated([write(tmp_path, first)], {"memory": memory}).returncode == 0
        done = programs.run_simulated([write(tmp_path, second)], {"memory": memory})
        assert done.stdout == f"False False {Path.cwd()}\n"


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("raise KeyError('lost')", 1, "KeyError: 'lost'"),
        ("import os; os.kill(os.getpid(), 11)", -11, ""),
        ("import os; os._exit(7)", 7, ""),
    ],
)
def test_every_end_of_a_program_is_recorded(
    tmp_path: Path, text: str, code: int, said: str
) -> None:
    done = programs.run_simulated([write(tmp_path, text)], {"memory": "1GiB"})
    assert (done.returncode, said in done.stderr) == (code, True)


def test_a_forked_program_that_does_nothing_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "Patience", lambda session: Patience(session, idle_s=1))
    done = programs.run_simulated([write(tmp_path, SLEEP)], {"memory": "1GiB"})
    assert done.returncode == -signal.SIGKILL
    assert "stopped after 1 s in which it did nothing" in done.stderr


def test_early_variables_start_a_new_interpreter(tmp_path: Path) -> None:
    """The fork server has loaded torch; a new process has not."""
    path = write(tmp_path, "import sys; print('torch' in sys.modules)")
    for env, loaded in (
        ({"FERRO_ALLOC_CONF": "page_size_mb:4"}, True),
        ({"FERRO_ALLOC": "0"}, False),
        ({"CUDA_VISIBLE_DEVICES": "0"}, False),
    ):
        done = programs.run_simulated([path], {"memory": "1GiB"}, env)
        assert done.stdout == f"{loaded}\n", env


def test_variables_of_torch_take_effect_in_forked_programs(tmp_path: Path) -> None:
    text = (
        "import sys; print('torch' in sys.modules)\n"
        "import torch\n"
        "x = torch.empty(1, device='cuda')\n"
        "print(torch.cuda.memory._snapshot()['allocator_settings']['expandable_segments'])\n"
    )
    for env, expandable in (
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, True),
        ({}, False),
    ):
        done = programs.run_simulated([write(tmp_path, text)], {"memory": "1GiB"}, env)
        assert done.stdout == f"True\n{expandable}\n", done.stderr


@pytest.mark.parametrize("destructors", [False, True])
def test_modules_of_a_program_end_with_it(tmp_path: Path, destructors: bool) -> None:
    """Only destructors of modules that the fork server has loaded may be left out."""
    source, library = tmp_path / "ends.cpp", tmp_path / "ends.so"
    source.write_text('struct S { ~S() { __builtin_puts("destroyed"); } } s;')
    subprocess.run(["g++", "-shared", "-fPIC", source, "-o", library], check=True)
    text = (
        f"import atexit, ctypes, sys\nctypes.CDLL({str(library)!r})\n"
        "class Kept:\n    def __del__(self): print('deleted')\n"
        "kept = Kept()\natexit.register(print, 'at exit')\nsys.exit(5)\n"
    )
    machine = {"memory": "1GiB"}
    path = write(tmp_path, text)
    done = programs.run_simulated([path], machine, destructors=destructors)
    assert done.returncode == 5
    assert done.stdout == "at exit\ndeleted\ndestroyed\n"


def test_commands_of_the_makefile_run_in_a_folder_with_a_space(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    for name in ("tools", "build"):
        (folder / name).mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", folder)
    setup = folder / "tools" / "bootstrap.sh"
    setup.write_text("#!/bin/sh\n")
    setup.chmod(0o755)
    (folder / "tools" / "build.py").write_text("print('built')\n")
    (folder / "python").symlink_to(sys.executable)
    (folder / "build" / "python").write_text(f"{folder / 'python'}\n")
    done = subprocess.run(["make", "-s", "build"], cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "built\n"), done.stderr


def test_jobs_follow_the_machine() -> None:
    if "MAX_JOBS" not in os.environ:
        assert len(os.sched_getaffinity(0)) == execution.JOBS


@pytest.mark.parametrize(
    ("allocators", "rows"), [(("pages",), 0), (("native",), 1), (("native", "pages"), 2)]
)
def test_figures_of_clients_are_those_beside_native(
    allocators: tuple[str, ...],
    rows: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    side = {
        "value": None,
        "peak_reserved": 2,
        "peak_allocated": 1,
        "seconds": 1.0,
        "processor_seconds": 1.0,
    }
    figures = tmp_path / "figures.jsonl"
    monkeypatch.setenv("FERRO_CLIENT_FIGURES", str(figures))
    monkeypatch.setattr(client_sides, "simulated", lambda *_, **__: side)
    assert tuple(client_sides.run_sides("client_any.py", allocators=allocators)) == allocators
    assert len(figures.read_text().splitlines() if figures.exists() else []) == rows
