"""Runs programs of the tests in separate processes.

A process can hold one allocator and one driver, so tests that install ferro_alloc or use CUDA run
programs. Programs on the simulated GPU are forked from a process that has torch loaded
(tests/fork_server.py). Programs that test the start of Python, or settings that are read while
torch is loaded, run in a new interpreter.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tools import patience
from tools.patience import Patience

ROOT = Path(__file__).resolve().parent.parent
PYTHON_TESTS = ROOT / "tests" / "python"
SERVER = ROOT / "tests" / "fork_server.py"
START = ROOT / "tests" / "start"
"""A folder in the path of all programs, whose module Python imports when it starts."""
NO_EXTENSION = ROOT / "tests" / "no_extension"
"""A folder in the path of programs that cannot load the allocator's extension."""

# Puts the simulated GPU in place, then behaves like `python PROGRAM ARGUMENTS`.
SIMULATE = """\
import json, os, runpy, sys
import ferro_alloc.sim
ferro_alloc.sim.activate(**json.loads(sys.argv[1]))
del sys.argv[0:2]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# Settings of the person who runs the tests must not reach the programs.
SETTINGS = (
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    *("FERRO_ALLOC_CONF", "FERRO_ALLOC", "FERRO_ALLOC_SIM"),
)
NOT_INHERITED = (*SETTINGS, "PYTHONDONTWRITEBYTECODE")
# These variables are read before a program begins. Our other variables may be set after torch was
# loaded.
EARLY = ("FERRO_ALLOC", "FERRO_ALLOC_SIM", "FERRO_SIM_LIB")

# Programs that use torch.compile, or other parts of torch that load it, such as the profiler,
# histories or sympy. They are forked where it is loaded. Loading it takes 0.9 s of processor time,
# ten times as long as the program of a typical test. The names lack the .py by which
# tools/unchanged.py finds the programs that each test reads.
COMPILING = {
    "both_allocators",
    "debugged",
    "features_capture_pools",
    "features_exclusive",
    "features_graph_examples",
    "features_graphs",
    "features_history",
    "features_interface",
    "features_snapshots",
    "features_training",
    "features_trees",
    "fuzz_torch",
    "leaking",
    "out_of_memory_reports",
    "recorded_program",
    "sampled",
    "seeded",
    "sim_compile",
    "sim_cudnn",
    "sim_same_choices",
    "suites",
    "switching",
    "switching_trees",
    "tag_followed",
    "tagged",
}
# Text of other programs that do: optimizers, checkpoints, and models that are measured.
LOADS_COMPILER = re.compile(r"\boptim\.[A-Z]|\bcheckpoint\(|^from bench", re.MULTILINE)
COMPILER = ("torch._dynamo", "torch._inductor.cudagraph_trees", "torch._inductor.compile_fx")
# Torch reads these variables while it is loaded; a fork server loads it with their values.
FOR_TORCH = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")

FOR_SERVER = {
    # numpy's library starts threads when it is loaded, which children would lack.
    "OPENBLAS_NUM_THREADS": "1",
    # Large tensors of the host cost fewer page faults.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    # Otherwise Inductor queries the GPU when it is loaded, and children could not use one.
    "TORCHINDUCTOR_USE_EXPERIMENTAL_BENCHMARKER": "0",
}

Completed = patience.Completed


@cache
def find_program(name: str) -> Path:
    """The one file of that name under tests/python, in any folder."""
    found = list(PYTHON_TESTS.rglob(name))
    assert len(found) == 1, f"{len(found)} files under {PYTHON_TESTS} are named {name}, not one"
    return found[0]


def clean_environment() -> dict[str, str]:
    """The environment of this process without the settings above, and with the checkout to import
    from.

    Programs run side by side, so torch's threads would wait for each other in busy loops. Python
    keeps the compiled form of the checkout's modules, whatever the person prefers: compiling them
    takes a tenth of the time of a start with torch.
    """
    inherited = {key: value for key, value in os.environ.items() if key not in NOT_INHERITED}
    folders = [str(ROOT), inherited.get("PYTHONPATH"), str(START)]
    path = os.pathsep.join(filter(None, folders))
    return {"OMP_NUM_THREADS": "1", **inherited, "PYTHONPATH": path}


def run(
    words: Sequence[str | Path], env: Mapping[str, str] | None = None, folder: Path | None = None
) -> Completed:
    """Runs a command for as long as it moves, as `patience.run` does, in a clean environment."""
    return patience.run(words, {**clean_environment(), **(env or {})}, folder)


def run_simulated(
    words: Sequence[str | Path],
    machine: Mapping[str, Any] | None,
    env: Mapping[str, str] | None = None,
    start_anew: bool = False,
    destructors: bool = False,
) -> Completed:
    """Runs `python WORDS` on the simulated GPU that `machine` describes to `sim.activate()`; None:
    the program activates it by itself. With `start_anew` a new interpreter runs the program. The
    static destructors of torch run in such programs and with `destructors`."""
    env = dict(env or {})
    early = {key: value for key, value in env.items() if key in FOR_TORCH}
    late = all(key.startswith("FERRO_") and key not in EARLY for key in env.keys() - early.keys())
    if late and not start_anew:
        with _one_at_a_time:
            server = _fork_server(frozenset(early.items()), _loads_compiler(words))
        return server.run([str(word) for word in words], machine, env, destructors)
    start = [] if machine is None else ["-c", SIMULATE, json.dumps(machine)]
    return run([sys.executable, *start, *words], env)


def _loads_compiler(words: Sequence[str | Path]) -> bool:
    """Whether a program among the words of a command loads torch's compiler."""
    files = [path for path in map(Path, words) if path.suffix == ".py" and path.is_file()]
    return any(f.stem in COMPILING or LOADS_COMPILER.search(f.read_text()) for f in files)


class ForkServer:
    """A connection to a server that the processes of one run of tests share."""

    def __init__(self, name: str, start: Callable[[socket.socket], object]) -> None:
        """Unless a server has the name, `start` starts one with the listening socket."""
        address = f"\0{name}"  # exists as long as its socket
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            while True:
                try:
                    listener.bind(address)
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise
                    with contextlib.suppress(ConnectionRefusedError):  # it does not listen yet
                        self._control.connect(address)
                        return
                    time.sleep(0.01)
                    continue
                listener.listen()
                self._control.connect(address)
                self._started = start(listener)
                return

    def fork_server(self, modules: Sequence[str], listener: socket.socket) -> None:
        """Makes this server fork one with more modules."""
        request = json.dumps({"modules": list(modules)}).encode()
        socket.send_fds(self._control, [request], [listener.fileno()])

    def run(
        self,
        words: Sequence[str],
        machine: Mapping[str, Any] | None,
        env: Mapping[str, str],
        destructors: bool,
    ) -> Completed:
        request = {
            "words": list(words),
            "machine": machine,
            "env": {**clean_environment(), **env},
            "destructors": destructors,
            "folder": str(Path.cwd()),
        }
        reading, writing = os.pipe()
        with (
            open(reading, "rb") as answers,  # noqa: PTH123
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as errors,
        ):
            with open(writing, "wb") as pipe:  # noqa: PTH123
                handed = [out.fileno(), errors.fileno(), pipe.fileno()]
                socket.send_fds(self._control, [json.dumps(request).encode()], handed)
            begun = answers.readline()
            assert begun, f"{SERVER} has ended; its errors say why"
            pid = int(begun)
            patient, wrong = Patience(pid), ""
            while not select.select([answers], [], [], patience.INTERVAL_S)[0]:
                if not wrong and (wrong := patient.what_is_wrong()):
                    patience.stop(pid)
            code = int(answers.readline())
            return patience.completed(words, code, out, errors, wrong)


_one_at_a_time = threading.Lock()


@cache
def _fork_server(for_torch: frozenset[tuple[str, str]], compiles: bool) -> ForkServer:
    """One server for each environment of torch, and one more with the compiler, which the first one
    forks."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    key = f"{run} {ROOT} {sys.executable} {sorted(for_torch)} {compiles}"

    def start(listener: socket.socket) -> object:
        if compiles:
            _fork_server(for_torch, False).fork_server(COMPILER, listener)
            return None
        return _start_server(dict(for_torch), listener)

    return ForkServer(hashlib.sha256(key.encode()).hexdigest(), start)


def _start_server(env: Mapping[str, str], listener: socket.socket) -> subprocess.Popen[bytes]:
    inherited = clean_environment()
    # Each program decides by itself whether it may load the extension. The server and its children
    # end in their own way.
    folders = inherited["PYTHONPATH"].split(os.pathsep)
    others = [folder for folder in folders if folder not in (str(NO_EXTENSION), str(START))]
    inherited["PYTHONPATH"] = os.pathsep.join(others)
    return subprocess.Popen(
        [sys.executable, SERVER, str(listener.fileno())],
        env={**inherited, **FOR_SERVER, **env},
        stdin=subprocess.DEVNULL,
        pass_fds=[listener.fileno()],
    )
