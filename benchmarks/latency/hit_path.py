"""The cost of an allocation from held memory: nanoseconds under each allocator.

One process per allocator; they take turns, so that drift of the machine favours none. The loops are
C++ (hit_path.cpp, compiled against the installed torch on first use), except that of `torch.empty`.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.harness import turns
from benchmarks.harness.processes import ROOT

SOURCE = ROOT / "benchmarks" / "latency" / "hit_path.cpp"
LIBRARY = ROOT / "build" / "benchmarks" / "libhit_path.so"
THREADS = (2, 4, 8, 16)
ROUNDS = 5
SECONDS_PER_CASE = 0.15


def compile_library() -> Path:
    """The shared library with the loops; rebuilt if the source or torch is newer."""
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


def cases(path: Path, threads: Sequence[int]) -> Mapping[str, turns.Case]:
    import torch

    library = ctypes.CDLL(str(path))
    library.ferro_benchmark_pairs.restype = ctypes.c_double
    library.ferro_benchmark_pairs.argtypes = (
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_double,
    )
    library.ferro_benchmark_churn.restype = ctypes.c_double
    library.ferro_benchmark_churn.argtypes = (ctypes.c_int, ctypes.c_double, ctypes.c_uint64)

    def pairs(count: int, own_streams: bool) -> turns.Case:
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


def main(argv: Sequence[str] | None = None) -> int:
    parser = turns.parser(__doc__, ROUNDS, SECONDS_PER_CASE)
    parser.add_argument("--threads", nargs="+", type=int, default=list(THREADS))
    parser.add_argument(
        "--library", type=Path, help="the compiled library of the loops, if it exists"
    )
    options = turns.parse(parser, argv)
    if options.smoke:
        options.threads = [2]
    if options.child is not None:
        return turns.child(options, partial(cases, options.library, options.threads))
    library = options.library or compile_library()
    arguments = ["--threads", *map(str, options.threads), "--library", str(library)]
    records = turns.run("benchmarks.latency.hit_path", arguments, options)
    return turns.report(records, "one allocation and its release", options)


if __name__ == "__main__":
    sys.exit(main())
