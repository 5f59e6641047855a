"""All tests of this checkout: linters, C++ tests, sanitizers, fuzzing, Python tests.

Each step counts what it ran. At the end one table, what was skipped and why, and as the very last
line `N passed, N failed, N skipped`. Fails if a GPU is there and the GPU tests did not run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import setup as ferro_setup  # noqa: E402  # also puts the environment's programs on PATH
from tools import clients, versions  # noqa: E402
from tools.gpu import gpu_count  # noqa: E402
from tools.results import Result, add, read_junit, skip  # noqa: E402

BUILD = ROOT / "build"
LOGS = BUILD / "test-logs"
SUITES = ("unit", "contract", "stress")
CUDA_MAJOR = 13
FUZZ_SECONDS = 16
COMMAND_TIMEOUT_S = 2700
JOBS = int(os.environ.get("MAX_JOBS", os.cpu_count() or 1))

console = Console(highlight=False, width=100)


@dataclass(frozen=True)
class Step:
    name: str
    group: str
    run: Callable[[str], Result]


def execute(
    log: str, command: Iterable[str | Path], env: dict[str, str] | None = None, quiet: bool = False
) -> bool:
    """Runs a command into a log file, and shows the end of it when the command fails."""
    LOGS.mkdir(parents=True, exist_ok=True)
    path = LOGS / f"{log}.log"
    words = [str(word) for word in command]
    with path.open("w") as out:
        try:
            code = subprocess.run(
                words,
                cwd=ROOT,
                env={**os.environ, **(env or {})},
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                timeout=COMMAND_TIMEOUT_S,
            ).returncode
        except subprocess.TimeoutExpired:
            out.write(f"\nstopped after {COMMAND_TIMEOUT_S} s\n")
            code = -1
    if code != 0 and not quiet:
        lines = path.read_text(errors="replace").splitlines()
        console.print(f"--- {' '.join(words)[:200]} failed ({code}); the end of {path}:")
        print("\n".join(lines[-60:]), flush=True)
    return code == 0


def read_log(log: str) -> str:
    return (LOGS / f"{log}.log").read_text(errors="replace")


def sources(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


# ---- linters


def lint_with(program: str, *arguments: str | Path) -> Callable[[str], Result]:
    def run(name: str) -> Result:
        if shutil.which(program) is None:
            return skip(name, f"{program} is not installed")
        ok = execute(name.replace(" ", "-"), [program, *arguments])
        return Result(name, passed=int(ok), failed=int(not ok))

    return run


def clang_format(name: str) -> Result:
    files = sources("csrc/**/*.h", "csrc/**/*.cpp", "tests/cpp/**/*.h", "tests/cpp/**/*.cpp")
    return lint_with("clang-format", "--dry-run", "-Werror", *files)(name)


def clang_tidy(name: str) -> Result:
    """The core, one file at a time: base, driver, core and graph."""
    for program in ("clang-tidy", "clang++"):
        if shutil.which(program) is None:
            return skip(name, f"{program} is not installed")
    tree = BUILD / "cpp-asan"
    if not configure("asan"):
        return Result(name, failed=1)
    parts = ("driver", "core", "graph")
    files = sources(*(f"csrc/ferro/{part}/**/*.cpp" for part in parts))

    def check(path: Path) -> bool:
        return execute(f"clang-tidy-{path.stem}", ["clang-tidy", "--quiet", "-p", tree, path])

    with ThreadPoolExecutor(JOBS) as pool:
        ok = list(pool.map(check, files))
    return Result(name, passed=sum(ok), failed=len(ok) - sum(ok))


# ---- C++


def configure(preset: str) -> bool:
    tree = BUILD / f"cpp-{preset}"
    include = ferro_setup.cuda_include(CUDA_MAJOR)
    launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    if (tree / "build.ninja").exists():
        return True  # ninja runs cmake again when a CMakeLists.txt has changed
    command = ["cmake", "--preset", preset, f"-DFERRO_CUDA_INCLUDE={include}", *launcher]
    return execute(f"configure-{preset}", command)


def build(preset: str, targets: Sequence[str]) -> bool:
    tree = str(BUILD / f"cpp-{preset}")
    command = ["cmake", "--build", tree, "-j", str(JOBS), "--target", *targets]
    log = "-".join(["build", preset, *targets][:3])
    return configure(preset) and execute(log, command)


def has_googletest() -> bool:
    probe = ["g++", "-xc++", "-E", "-o", os.devnull, "-include", "gtest/gtest.h", os.devnull]
    return execute("probe-googletest", probe, quiet=True)


def googletest(program: Path, log: str, env: dict[str, str] | None = None) -> Result:
    """Runs a GoogleTest program; its own report gives the counts, a crash counts as a failure."""
    report = LOGS / f"{log}.xml"
    report.unlink(missing_ok=True)
    # Thread sanitizer of clang 14 does not know the address layout of newer kernels.
    plain = ["setarch", platform.machine(), "-R"] if shutil.which("setarch") else []
    ok = execute(log, [*plain, program, f"--gtest_output=xml:{report}", "--gtest_brief=1"], env)
    if not report.exists():
        return Result(log, failed=1)
    return read_junit(log, report, ok)


def cpp(preset: str, compiler: str, suites: tuple[str, ...]) -> Callable[[str], Result]:
    def run(name: str) -> Result:
        if shutil.which(compiler) is None:
            return skip(name, f"{compiler} is not installed")
        if not has_googletest():
            return skip(name, "GoogleTest is not installed")
        present = [suite for suite in suites if sources(f"tests/cpp/{suite}/**/*_test.cpp")]
        if not present or not build(preset, [f"{suite}_tests" for suite in present]):
            return Result(name, failed=1)
        total = Result(name)
        for suite in present:
            program = BUILD / f"cpp-{preset}" / "tests" / "cpp" / f"{suite}_tests"
            total = add(total, googletest(program, f"{preset}-{suite}"))
        return total

    return run


def contract(name: str, *arguments: str) -> Result:
    """The contract suite as a plain program, which needs no GoogleTest."""
    if not sources("tests/cpp/contract/contract_runner.cpp"):
        return Result(name)
    if not build("release", ["contract_runner"]):
        return Result(name, failed=1)
    program = BUILD / "cpp-release" / "tests" / "cpp" / "contract_runner"
    log = "contract-runner" + "".join(arguments)
    ok = execute(log, [program, *arguments])
    # Its own last line is of the same form as ours.
    said = re.findall(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", read_log(log), re.MULTILINE)
    if not said:
        return Result(name, failed=1)
    passed, failed, _ = map(int, said[-1])
    reasons = Counter(re.findall(r"^skipped \S+: (.*)$", read_log(log), re.MULTILINE))
    return Result(name, passed, max(failed, int(not ok)), reasons)


def contract_simulated(name: str) -> Result:
    return contract(name, "--simulated")


def contract_gpu(name: str) -> Result:
    if gpu_count() == 0:
        return skip(name, "no NVIDIA GPU on this machine")
    return contract(name)


def random_programs(name: str) -> Result:
    """The model of a device's memory, longer than the unit tests run it."""
    if not build("release", ["seeded_programs"]):
        return Result(name, failed=1)
    program = BUILD / "cpp-release" / "tests" / "cpp" / "seeded_programs"
    ok = execute("seeded-programs", [program, "1000", "600000"])
    return Result(name, passed=int(ok), failed=int(not ok))


def fuzz(name: str) -> Result:
    targets = [path.stem for path in sources("tests/cpp/fuzz/*_fuzz.cpp")]
    if shutil.which("clang++") is None:
        return Result(name, skips=Counter({"clang++ is not installed": max(1, len(targets))}))
    if not targets:
        return Result(name)
    if not build("fuzz", targets):
        return Result(name, failed=len(targets))
    seconds = max(3, FUZZ_SECONDS // len(targets))
    passed = 0
    for target in targets:
        program = BUILD / "cpp-fuzz" / "tests" / "cpp" / target
        corpus = BUILD / "fuzz-corpus" / target
        corpus.mkdir(parents=True, exist_ok=True)
        limits = [f"-max_total_time={seconds}", "-max_len=4096", "-timeout=30"]
        found = f"-artifact_prefix={LOGS / target}-"
        passed += execute(target, [program, *limits, found, corpus])
    return Result(name, passed=passed, failed=len(targets) - passed)


# ---- Python

LATE_FOLDERS = ("failures", "features", "fuzz", "seeded", "sharing", "sim", "switching", "values")


def python_parts() -> list[list[Path]]:
    """The test files in two parts of about the same time, by their folders."""
    # Those of the clients run in the clients' environments, in a step of their own.
    folders = ROOT / clients.TESTS
    files = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if path.parent != folders)
    late = [path for path in files if path.parent.name in LATE_FOLDERS]
    return [[path for path in files if path not in late], late]


def gpu_tests_lost(counts: Mapping[str, int]) -> bool:
    """On a machine with a GPU: did tests marked gpu neither run nor say why, or none run at all?"""
    unexplained = counts["collected"] - counts["ran"] - counts["skipped"]
    return unexplained != 0 or (counts["collected"] != 0 and counts["ran"] == 0)


def python_part(name: str, number: int, files: Sequence[Path]) -> Result:
    junit, gpu_report = LOGS / f"pytest-{number}.xml", LOGS / f"pytest-gpu-{number}.json"
    for path in (junit, gpu_report):
        path.unlink(missing_ok=True)
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command: list[str | Path] = [*pytest, f"--junitxml={junit}", *files]
    ok = execute(f"pytest-{number}", command, {"FERRO_TEST_REPORT": str(gpu_report)})
    if not junit.exists() or not gpu_report.exists():
        return Result(name, failed=1)
    result = read_junit(name, junit, ok)
    marked = json.loads(gpu_report.read_text())
    if gpu_count() > 0 and gpu_tests_lost(marked):
        console.print(f"a GPU is here, and of {marked['collected']} GPU tests {marked['ran']} ran")
        result = replace(result, failed=result.failed + 1)
    return result


def python_tests(name: str) -> Result:
    """Side by side, but on a GPU one after the other: there they would share its memory."""
    parts = python_parts()
    with ThreadPoolExecutor(1 if gpu_count() > 0 else len(parts)) as pool:
        results = list(pool.map(partial(python_part, name), range(len(parts)), parts))
    return reduce(add, results, Result(name))


# ---- all together


STEPS = (
    Step("clang-format", "lint", clang_format),
    Step("ruff check", "lint", lint_with("ruff", "check", "--no-cache")),
    Step("ruff format", "lint", lint_with("ruff", "format", "--no-cache", "--check")),
    Step("mypy", "lint", lint_with("mypy", f"--cache-dir={os.devnull}")),
    Step("clang-tidy", "lint", clang_tidy),
    Step("C++ release (g++)", "cpp", cpp("release", "g++", SUITES)),
    Step("C++ ASan, UBSan (clang)", "cpp", cpp("asan", "clang++", ("unit", "contract"))),
    Step("C++ TSan (clang)", "cpp", cpp("tsan", "clang++", ("unit", "stress"))),
    Step("contract, simulated GPU", "cpp", contract_simulated),
    Step("contract, real GPU", "cpp", contract_gpu),
    Step("random programs", "cpp", random_programs),
    Step("fuzzing", "cpp", fuzz),
    Step("Python", "python", python_tests),
    Step("clients", "clients", clients.test_in_ci),
    Step(f"torch {versions.VERSIONS[-1].minor}", "versions", versions.test_newest),
)


def show(results: list[Result]) -> None:
    table = Table("step", title="tests")
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only",
        choices=("lint", "cpp", "python", "clients", "versions"),
        help="one group of steps",
    )
    only = parser.parse_args().only
    results: list[Result] = []
    for step in STEPS:
        if only is not None and step.group != only:
            continue
        console.print(f"{step.name} ...", end=" ")
        started = time.monotonic()
        result = replace(step.run(step.name), seconds=time.monotonic() - started)
        verdict = "FAILED" if result.failed else "ok" if result.passed else "skipped"
        console.print(f"{verdict} ({result.seconds:.1f} s)")
        results.append(result)
    show(results)
    total = Result("all")
    for result in results:
        total = add(total, result)
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped", flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
