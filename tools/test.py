"""The tests of this checkout.

    tools/test.py                       a test of every behaviour: what a person runs after a change
    tools/test.py --all                 that, then what takes longer: sanitizers, other versions ...
    tools/test.py --all --minutes 40    as much of that as fits, in the order of the list
    tools/test.py --parts asan tsan     these parts
    tools/test.py --list                the parts, what they test and how long they take
    tools/test.py --again               also what passed before with exactly these files

Each part counts its tests. The output ends with one table, the reasons for skipped tests, what
failed, and as the last line `N passed, N failed, N skipped`. Fails if there is a GPU and the GPU
tests did not run.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import platform
import re
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import setup as ferro_setup  # noqa: E402  # also puts the environment's programs on PATH
from tools import clients, execution, unchanged, versions, wheels  # noqa: E402
from tools.execution import JOBS, side_by_side  # noqa: E402
from tools.gpu import gpu_count  # noqa: E402
from tools.progress import Progress, minutes  # noqa: E402
from tools.results import Result, add, counts, read_junit, skip  # noqa: E402

BUILD = ROOT / "build"
LOGS = BUILD / "test-logs"
TIMES = BUILD / "test-times.json"
CUDA_MAJOR = 13
FUZZ_SECONDS = 16

console = Console(highlight=False, width=100)


@dataclass(frozen=True)
class Part:
    name: str
    what: str
    run: Callable[[Result, Progress], Result]
    """Runs the part; gets an empty result and returns the complete one."""
    seconds: float
    """Its time on two idle cores, which docs/testing.md gives too."""
    reads: Sequence[str] = ()
    """The files and folders that decide whether it must run again; empty for Python tests, which
    know theirs by file."""
    files: str = ""
    """The marker of Python tests, of whose files only those run that have not passed."""


def execute(
    log: str,
    command: Iterable[str | Path],
    progress: Progress | None = None,
    env: Mapping[str, str] | None = None,
    quiet: bool = False,
    watch: execution.Watch | None = None,
) -> bool:
    """Runs a command into a log file. Shows the end of the log if the command fails for another
    reason than a test; `progress` shows failed tests. `watch` reads the log; None: `progress`."""
    path = LOGS / f"{log}.log"
    words = [str(word) for word in command]
    if watch is None:
        watch = progress.watch if progress else lambda line: None
    whole, tick = {**os.environ, **(env or {})}, progress.tick if progress else lambda: None
    ok = execution.execute(path, words, env=whole, watch=watch, tick=tick)
    if not ok and not quiet and not (progress and progress.failed):
        print(f"\n--- {shlex.join(words)[:200]} failed; the end of {path}:")
        print(execution.tail(path), flush=True)
    return ok


def read_log(log: str) -> str:
    return (LOGS / f"{log}.log").read_text(errors="replace")


def sources(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


def verdict(empty: Result, ok: bool) -> Result:
    return replace(empty, passed=int(ok), failed=int(not ok))


# ---- linters


def lint_with(program: str, *arguments: str | Path) -> Callable[[Result, Progress], Result]:
    def run(empty: Result, progress: Progress) -> Result:
        if shutil.which(program) is None:
            return skip(empty.name, f"{program} is not installed")
        return verdict(empty, execute(empty.name, [program, *arguments]))

    return run


def clang_format(empty: Result, progress: Progress) -> Result:
    files = sources("csrc/**/*.h", "csrc/**/*.cpp", "tests/cpp/**/*.h", "tests/cpp/**/*.cpp")
    return lint_with("clang-format", "--dry-run", "-Werror", *files)(empty, progress)


def clang_tidy(empty: Result, progress: Progress) -> Result:
    """Checks base, driver, core and graph, one file at a time."""
    for program in ("clang-tidy", "clang++"):
        if shutil.which(program) is None:
            return skip(empty.name, f"{program} is not installed")
    parts = ("driver", "core", "graph")
    files = sources(*(f"csrc/ferro/{part}/**/*.cpp" for part in parts))
    include = f"-isystem{ferro_setup.cuda_include(CUDA_MAJOR)}"
    flags = ["-std=c++20", "-Wall", "-Wextra", f"-I{ROOT / 'csrc'}", include]
    done = 0

    def check(path: Path) -> bool:
        nonlocal done
        command = ["clang-tidy", "--quiet", str(path), "--", *flags]
        ok = execute(f"clang-tidy-{path.stem}", command)
        if not ok:
            progress.fail(path.name, shlex.join(command))
        done += 1
        progress.watch(f"[{done}/{len(files)}] {path.name}")
        return ok

    with ThreadPoolExecutor(JOBS) as pool:
        ok = list(pool.map(check, files))
    return replace(empty, passed=sum(ok), failed=len(ok) - sum(ok))


# ---- C++


def configure(preset: str) -> bool:
    tree = BUILD / f"cpp-{preset}"
    include = ferro_setup.cuda_include(CUDA_MAJOR)
    launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    objects = []
    if preset == "release":
        # It tests the objects of which the extension and the simulated GPU are made.
        try:
            objects = [f"-DFERRO_OBJECTS={ferro_setup.torch_free_objects()}"]
        except SystemExit as error:
            print(error, flush=True)
            return False
    made, presets = tree / "build.ninja", ROOT / "CMakePresets.json"
    if made.exists() and made.stat().st_mtime > presets.stat().st_mtime:
        return True  # ninja runs cmake again when a CMakeLists.txt has changed
    command = ["cmake", "--preset", preset, f"-DFERRO_CUDA_INCLUDE={include}", *objects, *launcher]
    return execute(f"configure-{preset}", command)


def build(preset: str, targets: Sequence[str], progress: Progress) -> bool:
    tree = BUILD / f"cpp-{preset}"
    command = ["cmake", "--build", str(tree), "-j", str(JOBS), "--target", *targets]
    log = "-".join(["build", preset, *targets][:3])
    tree.mkdir(parents=True, exist_ok=True)
    # Benchmarks configure and build the release tree too (benchmarks/harness/cpp_program.py). Of
    # two configurations at once, the last to end would lose the other's targets.
    with (tree / "benchmarks.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return configure(preset) and execute(log, command, progress)


# Of the release tree, besides GoogleTest's.
PROGRAMS = ("contract_runner", "seeded_programs")


def has_googletest() -> bool:
    probe = ["g++", "-xc++", "-E", "-o", os.devnull, "-include", "gtest/gtest.h", os.devnull]
    return execute("probe-googletest", probe, quiet=True)


def googletest(program: Path, log: str, progress: Progress, processes: int) -> Result:
    """Runs a GoogleTest program, each test in one of the processes; their reports give the counts,
    and a crash counts as a failure."""
    # Thread sanitizer of clang 14 does not know the address layout of newer kernels.
    plain = ["setarch", platform.machine(), "-R"] if shutil.which("setarch") else []
    shown = program.relative_to(ROOT)
    progress.for_tests_of(lambda name: shlex.join([*plain, str(shown), f"--gtest_filter={name}"]))
    watches = progress.side_by_side(processes)

    def run(number: int) -> Result:
        name = log if processes == 1 else f"{log}-{number}"
        report = LOGS / f"{name}.xml"
        report.unlink(missing_ok=True)
        env = {"GTEST_TOTAL_SHARDS": str(processes), "GTEST_SHARD_INDEX": str(number)}
        command: list[str | Path] = [*plain, program, f"--gtest_output=xml:{report}"]
        ok = execute(name, command, progress, env, watch=watches[number])
        if not ok:
            progress.fail_running(number)
        return read_junit(log, report, ok) if report.exists() else Result(log, failed=1)

    with ThreadPoolExecutor(processes) as pool:
        return reduce(add, pool.map(run, range(processes)))


def cpp(preset: str, compiler: str, *suites: str) -> Callable[[Result, Progress], Result]:
    def run(empty: Result, progress: Progress) -> Result:
        if shutil.which(compiler) is None:
            return skip(empty.name, f"{compiler} is not installed")
        if not has_googletest():
            return skip(empty.name, "GoogleTest is not installed")
        # All programs of the tree at once keep all cores busy.
        others = PROGRAMS if preset == "release" else ()
        if not build(preset, [*(f"{suite}_tests" for suite in suites), *others], progress):
            return replace(empty, failed=1)
        total = empty
        for suite in suites:
            program = BUILD / f"cpp-{preset}" / "tests" / "cpp" / f"{suite}_tests"
            # The threads of a stress test need the cores to themselves.
            processes = 1 if suite == "stress" else JOBS
            total = add(total, googletest(program, f"{preset}-{suite}", progress, processes))
        return total

    return run


def contract(empty: Result, progress: Progress, *arguments: str) -> Result:
    """The contract suite as a plain program, which needs no GoogleTest."""
    if not build("release", PROGRAMS[:1], progress):
        return replace(empty, failed=1)
    program = BUILD / "cpp-release" / "tests" / "cpp" / "contract_runner"
    log = "contract-runner" + "".join(arguments)
    ok = execute(log, [program, *arguments])
    # Its last line has the same form as that of this program.
    said = re.findall(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", read_log(log), re.MULTILINE)
    if not said:
        return replace(empty, failed=1)
    passed, failed, _ = map(int, said[-1])
    reasons = Counter(re.findall(r"^skipped \S+: (.*)$", read_log(log), re.MULTILINE))
    return replace(empty, passed=passed, failed=max(failed, int(not ok)), skips=reasons)


def contract_simulated(empty: Result, progress: Progress) -> Result:
    return contract(empty, progress, "--simulated")


def contract_gpu(empty: Result, progress: Progress) -> Result:
    if gpu_count() == 0:
        return skip(empty.name, "no NVIDIA GPU on this machine")
    return contract(empty, progress)


def random_programs(instructions: int) -> Callable[[Result, Progress], Result]:
    """Runs the model of a device's memory longer than the unit tests do."""

    def run(empty: Result, progress: Progress) -> Result:
        if not build("release", PROGRAMS[1:], progress):
            return replace(empty, failed=1)
        program = BUILD / "cpp-release" / "tests" / "cpp" / "seeded_programs"

        def run_some(number: int) -> Result:
            seed = 1000 * (number + 1) ** 2  # far from the others' last
            command = [str(program), str(seed), str(instructions // JOBS)]
            return verdict(empty, execute(f"{empty.name}-{number}", command))

        with ThreadPoolExecutor(JOBS) as pool:
            return reduce(add, pool.map(run_some, range(JOBS)))

    return run


def fuzz(empty: Result, progress: Progress) -> Result:
    targets = [path.stem for path in sources("tests/cpp/fuzz/*_fuzz.cpp")]
    if shutil.which("clang++") is None:
        return replace(empty, skips=Counter({"clang++ is not installed": len(targets)}))
    if not build("asan", targets, progress):
        return replace(empty, failed=len(targets))
    passed = 0
    for target in targets:
        program = BUILD / "cpp-asan" / "tests" / "cpp" / target
        corpus = BUILD / "fuzz-corpus" / target
        corpus.mkdir(parents=True, exist_ok=True)
        seconds = f"-max_total_time={FUZZ_SECONDS // len(targets)}"
        found = f"-artifact_prefix={LOGS / target}-"
        passed += execute(target, [program, seconds, "-max_len=4096", found, corpus])
    return replace(empty, passed=passed, failed=len(targets) - passed)


# ---- Python


def gpu_tests_lost(marked: Mapping[str, int]) -> bool:
    """On a machine with a GPU: did tests marked gpu neither run nor say why, or none run at all?"""
    unexplained = marked["collected"] - marked["ran"] - marked["skipped"]
    return unexplained != 0 or (marked["collected"] != 0 and marked["ran"] == 0)


def python_files(marker: str) -> list[Path]:
    # Tests of the clients run in the clients' environments.
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    files = [path for path in files if path.parent != ROOT / clients.TESTS]
    return [path for path in files if marker != "long" or "mark.long" in path.read_text()]


@cache
def digests(marker: str) -> dict[Path, str]:
    return {path: unchanged.digest(unchanged.read_by(path)) for path in python_files(marker)}


def name_of(part: str, path: Path) -> str:
    return f"{part} {path.relative_to(ROOT)}"


def wanted_files(part: str, marker: str) -> list[Path]:
    """The files that have not passed as they are now."""
    # On a GPU all tests run, because the verdict includes whether they did.
    known = digests(marker).items()
    return [p for p, d in known if gpu_count() > 0 or not PASSED.is_known(name_of(part, p), d)]


def python_tests(marker: str) -> Callable[[Result, Progress], Result]:
    """Tests that pytest selects by the marker, in files that have not passed unchanged."""

    def run(empty: Result, progress: Progress) -> Result:
        known = digests(marker)
        names = {path: name_of(empty.name, path) for path in known}
        wanted = wanted_files(empty.name, marker)
        empty = replace(empty, skips=Counter({unchanged.REASON: len(known) - len(wanted)}))
        if not wanted:
            return empty
        junit, report = LOGS / f"{empty.name}.xml", LOGS / f"{empty.name}-gpu.json"
        failures = LOGS / f"{empty.name}-failures.jsonl"
        for path in (junit, report, failures):
            path.unlink(missing_ok=True)
        pytest = [sys.executable, "-m", "pytest"]
        progress.for_tests_of(lambda name: shlex.join([*pytest, name]), failures)
        shown = ["-v", "-p", "no:cacheprovider", f"--junitxml={junit}"]
        chosen: list[str | Path] = ["-m", marker, *wanted]
        command = [*pytest, *shown, *side_by_side(), *chosen]
        files = {"FERRO_TEST_REPORT": str(report), "FERRO_TEST_FAILURES": str(failures)}
        ok = execute(empty.name, command, progress, files)
        if not ok:
            progress.fail_running()
        if not junit.exists():
            return replace(empty, failed=max(1, len(progress.failed)))
        result = add(empty, read_junit(empty.name, junit, ok))
        failed = {name.partition("::")[0] for name in progress.failed}
        others_ran = bool(failed) and progress.have_all_run()
        fine = [p for p in wanted if ok or (others_ran and str(p.relative_to(ROOT)) not in failed)]
        PASSED.note({names[p]: known[p] for p in fine}, [names[p] for p in wanted if p not in fine])
        if gpu_count() > 0:
            marked = json.loads(report.read_text()) if report.exists() else {"collected": 0}
            if not report.exists() or gpu_tests_lost(marked):
                print(f"a GPU is here, and of the GPU tests not all ran or said why not: {marked}")
                result = replace(result, failed=result.failed + 1)
        return result

    return run


# ---- what others run


def of_versions(minors: Sequence[str]) -> Callable[[Result, Progress], Result]:
    def run(empty: Result, progress: Progress) -> Result:
        for version in versions.VERSIONS:
            if version.minor in minors and version.minor != versions.installed():
                empty = add(empty, versions.test(version))
        return empty

    return run


def of_clients(names: Sequence[str]) -> Callable[[Result, Progress], Result]:
    chosen = [client for client in clients.CLIENTS if client.name in names]

    def run(empty: Result, progress: Progress) -> Result:
        versions.find_installer()  # once, before all look for it
        with ThreadPoolExecutor(min(JOBS, 2)) as pool:
            for result in pool.map(partial(clients.test, rounds=1), chosen):
                empty = add(empty, result)
        return empty

    return run


def of_wheels(empty: Result, progress: Progress) -> Result:
    return add(empty, wheels.test_each([version.minor for version in versions.VERSIONS]))


# ---- all together

FIRST_CLIENT = ("torch_memory_saver",)
SOME_CLIENTS = ("trainer", "vllm_sleep")
OTHER_CLIENTS = tuple(
    client.name for client in clients.CLIENTS if client.name not in (*FIRST_CLIENT, *SOME_CLIENTS)
)
NEWEST = versions.VERSIONS[-1].minor
OTHERS = [version.minor for version in versions.VERSIONS[1:-1]]

PASSED = unchanged.Passed()
CPP = (*unchanged.CPP, *unchanged.BUILD, "tools/test.py", "tools/execution.py")
# The parts to run after a change.
TEST = (
    Part("clang-format", "the layout of C++", clang_format, 2),
    Part("ruff", "Python's rules", lint_with("ruff", "check", "--no-cache"), 1),
    Part("ruff-format", "its layout", lint_with("ruff", "format", "--no-cache", "--check"), 1),
    Part("mypy", "its types", lint_with("mypy", f"--cache-dir={os.devnull}"), 5),
    Part(
        "release",
        "unit, contract and stress tests in C++",
        cpp("release", "g++", "unit", "contract", "stress"),
        100,
        CPP,
    ),
    Part("contract", "the contract, on the simulated GPU", contract_simulated, 5, CPP),
    Part("contract-gpu", "the contract, on a real one", contract_gpu, 0),
    Part("random", "random programs of the device's model", random_programs(100_000), 10, CPP),
    Part(
        "python",
        "PyTorch programs, layers, packages",
        python_tests("not long"),
        330,
        files="not long",
    ),
    Part("client", f"a real program: {FIRST_CLIENT[0]}", of_clients(FIRST_CLIENT), 15),
)
# The longer parts, the most useful first.
REST = (
    Part(
        "asan",
        "unit and contract tests under the address sanitizer",
        cpp("asan", "clang++", "unit", "contract"),
        183,
    ),
    Part(
        "tsan",
        "tests with threads under the thread sanitizer",
        cpp("tsan", "clang++", "unit", "stress"),
        45,
    ),
    Part("clang-tidy", "driver, core and graph", clang_tidy, 260),
    Part(
        "long",
        "long seeds, benchmarks' smoke runs, large programs",
        python_tests("long"),
        466,
        files="long",
    ),
    Part("random-long", "random programs, six times as many", random_programs(600_000), 14),
    Part("fuzz", "the same instructions under libFuzzer", fuzz, 28),
    Part("clients", f"real programs: {', '.join(SOME_CLIENTS)}", of_clients(SOME_CLIENTS), 210),
    Part("torch-newest", f"torch {NEWEST}", of_versions([NEWEST]), 275),
    Part("clients-more", ", ".join(OTHER_CLIENTS), of_clients(OTHER_CLIENTS), 509),
    Part("torch-others", f"torch {', '.join(OTHERS)}", of_versions(OTHERS), 374),
    Part("wheels", "a wheel for each torch, installed alone", of_wheels, 1_500),
)
GROUPS = {
    "lint": ("clang-format", "ruff", "ruff-format", "mypy", "clang-tidy"),
    "cpp": ("release", "contract", "contract-gpu", "random", "asan", "tsan", "fuzz"),
    "sanitizers": ("asan", "tsan"),
}
ALWAYS = (*(part.name for part in TEST), *GROUPS["sanitizers"])
"""Runs even if the time does not suffice."""


class Times:
    """The last times of parts on this machine, and their ratio to those of two idle cores."""

    def __init__(self) -> None:
        self._taken: dict[str, float] = unchanged.read_record(TIMES)

    def note(self, part: Part, seconds: float, is_complete: bool) -> None:
        """The time of a run without the tests that had passed says nothing about other runs."""
        if is_complete:
            self._taken[part.name] = seconds
            unchanged.write_record(TIMES, self._taken)

    def expect(self, part: Part) -> float:
        """The share of a whole run that the tests take which have not passed."""
        return share_of(part) * self._whole(part)

    def _whole(self, part: Part) -> float:
        """A part that never ran here is expected to be slower than listed by the others' ratio."""
        if part.name in self._taken:
            return self._taken[part.name]
        taken = listed = 0.0
        for each in (*TEST, *REST):
            if each.seconds > 10 and (seconds := self._taken.get(each.name)):
                taken, listed = taken + seconds, listed + each.seconds
        if taken < listed:  # a few fast parts, such as from a compiler's cache, say little
            taken, listed = taken + USUAL_SECONDS, listed + USUAL_SECONDS
        return part.seconds * (taken / listed if listed else 1)


USUAL_SECONDS = 300


def share_of(part: Part) -> float:
    if part.files:
        return len(wanted_files(part.name, part.files)) / max(1, len(digests(part.files)))
    return float(not (part.reads and PASSED.is_known(part.name, digest_of(part))))


def digest_of(part: Part) -> str:
    return unchanged.digest(unchanged.files_below(*part.reads)) if part.reads else ""


def show_parts(parts: Sequence[Part], times: Times) -> None:
    table = Table("part", "tests")
    table.add_column("takes", justify="right")
    for part in parts:
        table.add_row(part.name, part.what, minutes(times.expect(part)))
    console.print(table)
    print(f"together {minutes(sum(map(times.expect, parts)))}", flush=True)


def show(results: Sequence[Result]) -> None:
    table = Table("part", title="tests")
    for heading in ("passed", "failed", "skipped", "seconds"):
        table.add_column(heading, justify="right")
    for result in results:
        numbers = (result.passed, result.failed, result.skipped)
        table.add_row(result.name, *map(str, numbers), f"{result.seconds:.1f}")
    console.print(table)
    reasons = [(r.name, reason, n) for r in results for reason, n in sorted(r.skips.items())]
    if reasons:
        console.print("skipped:")
        for name, reason, count in reasons:
            console.print(f"  {name}: {count} x {reason}", markup=False, soft_wrap=True)
    if failures := [result for result in results if result.failed]:
        console.print("failed:")
        for result in failures:
            alone = f"make test-all PARTS={result.name}"
            known = result.alone or (f"{alone}; what it printed is above, and in {LOGS}",)
            for text in known:
                console.print(f"  {result.name}: {text}", markup=False, soft_wrap=True)


def run_parts(parts: Sequence[Part], times: Times, minutes_left: float) -> list[Result]:
    started = time.monotonic()
    results = []
    for number, part in enumerate(parts):
        left = minutes_left * 60 - (time.monotonic() - started)
        wanted = times.expect(part)
        if wanted > left and part.name not in ALWAYS:
            reason = f"left out: takes {minutes(wanted)}, and {minutes(max(0, left))} are left"
            print(f"{part.name} ... {reason}", flush=True)
            results.append(skip(part.name, reason))
            continue
        files = digest_of(part)
        if files and PASSED.is_known(part.name, files):
            print(f"{part.name} ... {unchanged.REASON}", flush=True)
            results.append(skip(part.name, unchanged.REASON))
            continue
        print(f"{part.name} ({part.what}) ...", flush=True)
        after = sum(map(times.expect, parts[number + 1 :]))
        progress = Progress(part.name, wanted, after)
        began = time.monotonic()
        result = part.run(Result(part.name), progress)
        seconds = time.monotonic() - began
        progress.end()
        outcome = "FAILED" if result.failed else "ok" if result.passed else "skipped"
        print(f"{part.name} ... {outcome} ({seconds:.1f} s)", flush=True)
        if outcome == "ok":
            times.note(part, seconds, unchanged.REASON not in result.skips)
        if files:
            is_fine = result.failed == 0 and result.passed > 0
            PASSED.note({part.name: files} if is_fine else {}, [] if is_fine else [part.name])
        alone = tuple(progress.commands)
        results.append(replace(result, name=part.name, seconds=seconds, alone=alone))
    return results


def choose_parts(names: Sequence[str]) -> list[Part]:
    every = {part.name: part for part in (*TEST, *REST)}
    if unknown := [name for name in names if name not in (*every, *GROUPS)]:
        known = ", ".join((*every, *GROUPS))
        sys.exit(f"expected parts of {known}; got {', '.join(unknown)}")
    asked = [each for name in names for each in GROUPS.get(name, (name,))]
    return [part for name, part in every.items() if name in asked]


@contextlib.contextmanager
def only_run() -> Iterator[None]:
    """Two runs would write into the same logs and count each other's tests."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "test.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("another run tests this checkout; wait for its end, or stop it")
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="also what takes longer")
    parser.add_argument("--parts", nargs="+", metavar="PART", help="these, or a group of them")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="as much as fits")
    parser.add_argument("--again", action="store_true", help="also what passed with these files")
    parser.add_argument("--list", action="store_true", help="show the parts, run nothing")
    arguments = parser.parse_args()
    if arguments.again:
        PASSED.forget()
    times = Times()
    parts = [*TEST, *REST] if arguments.all or arguments.list else list(TEST)
    if arguments.parts:
        parts = choose_parts(arguments.parts)
    show_parts(parts, times)
    if arguments.list:
        return 0
    with only_run():
        results = run_parts(parts, times, arguments.minutes)
    show(results)
    total = Result("all")
    for result in results:
        total = add(total, result)
    print(counts(total), flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    execution.stop_at_interrupt()
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted; what passed until then need not run again")
