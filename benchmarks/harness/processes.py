"""One process per allocator, for the benchmarks and the GPU tests.

PyTorch chooses its CUDA allocator once per process, so each comparison starts several processes. A
child prints one JSON object per line. After `"waiting": true` it continues when its parent writes a
line. So the parent lets several children take turns, and drift of the machine does not favour one.
If the parent decides the number of turns, the line says whether to stop.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tools import patience
from tools.patience import Patience

ROOT = Path(__file__).resolve().parents[2]
OURS = "ferro_alloc"
ALLOCATORS = ("native", "expandable", "cudaMallocAsync", OURS)
# The simulated GPU has no stream-ordered allocator.
SIMULATED_ALLOCATORS = ("native", "expandable", OURS)
STOP = "stop\n"
# The processor time of a child, more than any benchmark takes: a child that spins forever is
# stopped too.
PROCESSOR_S = 4 * patience.PROCESSOR_S
SETTINGS = {
    "expandable": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}


def use_allocator(
    allocator: str,
    simulated: bool,
    gpu: str = "h200",
    **machine: Any,
) -> None:
    """Installs the allocator, and optionally a simulated GPU. Must be called before torch is
    imported.

    `machine` has further arguments of `sim.activate()`.
    """
    if allocator not in ALLOCATORS:
        raise ValueError(f"'{allocator}' is no allocator: expected one of {', '.join(ALLOCATORS)}")
    if "torch" in sys.modules:
        raise RuntimeError("torch is imported already: its allocator can no longer be chosen")
    os.environ.pop("PYTORCH_ALLOC_CONF", None)
    os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    if allocator in SETTINGS:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = SETTINGS[allocator]
    # Without it cuBLAS may choose another algorithm from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if simulated:
        from ferro_alloc import sim

        sim.activate(gpu=gpu, **machine)
    if allocator == "ferro_alloc":
        import ferro_alloc

        ferro_alloc.install()


class ChildError(Exception):
    """A child ended with an error or was stopped; the text ends with its last output."""


class Child:
    """A running `python -m MODULE`, stopped if it does nothing for `idle_s` during a read."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        env: Mapping[str, str] | None = None,
        idle_s: float = patience.IDLE_S,
    ) -> None:
        self.name = " ".join([module, *arguments])
        self._wrong = ""
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            process_group=0,
        )
        self._is_read = threading.Event()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, args=[idle_s], daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            patience.stop(self._process.pid)
        self.close()

    def read(self) -> dict[str, Any]:
        """The child's next object; skips other lines, such as warnings."""
        assert self._process.stdout is not None
        self._is_read.set()
        try:
            for line in self._process.stdout:
                if line.startswith("{"):
                    message: dict[str, Any] = json.loads(line)
                    return message
        finally:
            self._is_read.clear()
        raise self._failure()

    def go_on(self, stop: bool = False) -> None:
        """Lets a waiting child continue or stop."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(STOP if stop else "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None

    def close(self) -> None:
        self._closed.set()
        if self._process.poll() is None:
            try:
                # A child that has printed its last object ends by itself.
                self._process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                patience.stop(self._process.pid)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None and not stream.closed:
                stream.close()

    def _watch(self, idle_s: float) -> None:
        patient: Patience | None = None
        while not self._closed.wait(patience.INTERVAL_S):
            if not self._is_read.is_set():
                patient = None  # it waits for its parent
                continue
            patient = patient or Patience(self._process.pid, idle_s=idle_s, processor_s=PROCESSOR_S)
            if wrong := patient.what_is_wrong():
                self._wrong = wrong
                patience.stop(self._process.pid)
                return

    def _failure(self) -> ChildError:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()[-25:]
        how = self._wrong or f"ended with {code}"
        return ChildError("\n".join([f"{self.name} {how}:", *lines]))


def say(**message: Any) -> None:
    """In the child: prints one object for the parent."""
    print(json.dumps(message), flush=True)


def wait_for_parent(**message: Any) -> bool:
    """In the child: announces that it waits, and returns when the parent lets it continue; False if
    it must stop. The end of the input means to continue."""
    say(waiting=True, **message)
    return sys.stdin.readline() != STOP
