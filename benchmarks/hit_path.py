"""What one allocation costs when memory is at hand: nanoseconds under each allocator.

One process per allocator; they take turns, so that the machine's drift favours none. The loops are
C++ (hit_path.cpp, compiled against the installed torch on first use), but for `torch.empty`.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.processes import (
    ALLOCATORS,
    ROOT,
    SIMULATED_ALLOCATORS,
    Child,
    ChildError,
    say,
    use_allocator,
    wait_for_parent,
)
from tools.gpu import gpu_count

SOURCE = ROOT / "benchmarks" / "hit_path.cpp"
LIBRARY = ROOT / "build" / "benchmarks" / "libhit_path.so"
THREADS = (2, 4, 8, 16)
ROUNDS = 5
SECONDS_PER_CASE = 0.15
TIMEOUT = 200


@dataclass
class Record:
    allocator: str
    nanoseconds: dict[str, list[float]] = field(default_factory=dict)
    """Of each case, one value a round."""
    problem: str = ""

    def median(self, case: str) -> float:
        return statistics.median(self.nanoseconds[case])


def compile_library() -> Path:
    """The shared library with the loops; made anew when the source or torch is newer."""
    from torch.utils import cpp_extension

    setup = importlib.import_module("setup")  # it knows where CUDA is
    newest = max(SOURCE.stat().st_mtime, Path(cpp_extension.__file__).stat().st_mtime)
    if LIBRARY.exists() and LIBRARY.stat().st_mtime > newest:
        return LIBRARY
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    fresh = LIBRARY.with_suffix(f".{os.getpid()}")
    include = [*cpp_extension.include_paths(), str(setup.cuda_include(13))]
    libraries = cpp_extension.library_paths()
    command = ["g++", "-std=c++20", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-pthread"]
    command += [f"-isystem{path}" for path in include]
    command += [str(SOURCE), "-o", str(fresh), *(f"-L{path}" for path in libraries)]
    subprocess.run([*command, "-lc10_cuda", "-lc10"], check=True)
    fresh.replace(LIBRARY)
    return LIBRARY


# ---- the child


def cases(library: ctypes.CDLL, threads: Sequence[int]) -> Mapping[str, Callable[[float], float]]:
    """From the name of a case to a function of the time it may take, in seconds."""
    import torch

    library.ferro_benchmark_pairs.restype = ctypes.c_double
    library.ferro_benchmark_pairs.argtypes = (
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_double,
    )
    library.ferro_benchmark_churn.restype = ctypes.c_double
    library.ferro_benchmark_churn.argtypes = (ctypes.c_int, ctypes.c_double, ctypes.c_uint64)

    def pairs(count: int, own_streams: bool) -> Callable[[float], float]:
        def run(seconds: float) -> float:
            return float(library.ferro_benchmark_pairs(4096, count, int(own_streams), seconds))

        return run

    def churn(seconds: float) -> float:
        return float(library.ferro_benchmark_churn(1_000, seconds, 1))

    def empty(seconds: float) -> float:
        done, started = 0, time.perf_counter()
        while (spent := time.perf_counter() - started) < seconds:
            for _ in range(1_000):
                torch.empty(1000, device="cuda")
            done += 1_000
        return spent / done * 1e9

    found = {"4 KiB, 1 thread": pairs(1, own_streams=True), "churn of 1,000 blocks": churn}
    for count in threads:
        found[f"{count} threads, own streams"] = pairs(count, own_streams=True)
    for count in threads:
        found[f"{count} threads, one stream"] = pairs(count, own_streams=False)
    found["torch.empty(1000)"] = empty
    return found


def child(options: argparse.Namespace) -> None:
    use_allocator(options.child, options.simulated)
    import torch

    torch.cuda.init()
    torch.empty(1, device="cuda")
    library = ctypes.CDLL(str(options.library))
    measured = cases(library, options.threads)
    for _ in range(options.rounds):
        wait_for_parent()
        say(**{name: run(options.seconds) for name, run in measured.items()})


# ---- the parent


def run(allocators: Sequence[str], options: argparse.Namespace, simulated: bool) -> list[Record]:
    library = compile_library()
    records = {name: Record(name) for name in allocators}
    common = ["--rounds", str(options.rounds), "--seconds", str(options.seconds)]
    common += ["--threads", *map(str, options.threads), "--library", str(library)]
    common += ["--simulated"] * simulated
    with ExitStack() as stack:
        children = {}
        for name in allocators:
            process = Child("benchmarks.hit_path", ["--child", name, *common], TIMEOUT)
            children[name] = stack.enter_context(process)
        for number in range(options.rounds):
            for name in allocators if number % 2 else reversed(allocators):
                record = records[name]
                if record.problem:
                    continue
                try:
                    children[name].read()  # it waits
                    children[name].go_on()
                    for case, nanoseconds in children[name].read().items():
                        record.nanoseconds.setdefault(case, []).append(nanoseconds)
                except ChildError as error:
                    record.problem = str(error)
    return list(records.values())


def show(records: Sequence[Record]) -> None:
    table = Table("nanoseconds (of native)", title="one allocation and its release")
    working = [record for record in records if not record.problem]
    for record in working:
        table.add_column(record.allocator, justify="right")
    native = next((r for r in working if r.allocator == "native"), None)
    for case in working[0].nanoseconds if working else ():
        cells = []
        for record in working:
            text = f"{record.median(case):,.0f}"
            if native is not None and record is not native:
                text += f" ({record.median(case) / native.median(case):.2f})"
            cells.append(text)
        table.add_row(case, *cells)
    Console().print(table)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocators", nargs="+", choices=ALLOCATORS)
    parser.add_argument("--threads", nargs="+", type=int, default=list(THREADS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS_PER_CASE, help="for each case")
    parser.add_argument("--smoke", action="store_true", help="moments only: does it run?")
    parser.add_argument("--output", type=Path, help="where the records go, as JSON")
    parser.add_argument("--child", choices=ALLOCATORS, help=argparse.SUPPRESS)
    parser.add_argument("--library", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--simulated", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child is not None:
        child(options)
        return 0
    if options.smoke:
        options.rounds, options.seconds, options.threads = 1, 0.01, [2]
    simulated = gpu_count() == 0
    allocators = options.allocators or (SIMULATED_ALLOCATORS if simulated else ALLOCATORS)
    records = run(allocators, options, simulated)
    if simulated:
        print("simulated GPU: the allocators' own work is real, the driver's is not")
    show(records)
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps([asdict(r) for r in records], indent=1) + "\n")
    problems = [record.problem for record in records if record.problem]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
