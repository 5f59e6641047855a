"""Starts programs from a process that has torch and the simulated GPU's libraries loaded already.

    fork_server.py DESCRIPTOR

Importing torch takes as long as a typical test. So this process does it once, and forks for each
program before CUDA is used; settings, arguments and the machine are those of the child. Some
programs need parts of torch that take as long again: a child of this process loads these modules,
and is their server.

tests/programs.py connects to the listening socket DESCRIPTOR. A request is a JSON object with
three descriptors: the child's output, its errors, and a pipe on which its number is answered at
once and its exit code when it has ended. A request for another server has that server's listening
socket as the only descriptor. A server ends when all connections are closed.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import platform
import runpy
import selectors
import socket
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ferro_alloc.sim import _activate

LONGEST_REQUEST = 1 << 20
LARGE_PAGE = 2 << 20
MADV_COLLAPSE = 25
MEMBARRIER = {"x86_64": 324, "aarch64": 283}
"""The number of the system call."""
MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED = 1 << 4
AFTER_TORCH = tuple(
    f"ferro_alloc.sim.{name}" for name in ("_float_uses", "_harmless", "_triton_hook")
)
"""What the simulated GPU imports in each process as soon as torch is imported."""
ROOT = Path(__file__).resolve().parent.parent
NO_EXTENSION = ROOT / "tests" / "no_extension"


def load_torch() -> None:
    _activate.preload()
    # Python calls it after the functions that the modules register.
    atexit.register(keep_modules)
    load(["torch", *AFTER_TORCH])
    # Children need not wrap each operator of torch again. Each one decides about values.
    importlib.import_module("ferro_alloc.sim._values").install(compute=False)
    # Modules that children import are compiled only once.
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(ROOT / "build" / "pycache")


def load(modules: Sequence[str]) -> None:
    gc.disable()  # nearly all that torch makes when it is loaded stays
    for name in modules:
        importlib.import_module(name)


def freeze() -> None:
    """Prepares this process for forks."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads run, of which a child would have one"
    # These objects are never freed: children need not scan them, nor copy their pages.
    kept.update(sys.modules)
    for finalizer in FINALIZERS:
        finalizer.atexit = False
    gc.collect()
    gc.freeze()
    gc.enable()
    join_pages()
    # Children inherit it. In a process with threads, the allocator waits 14 ms for it.
    if number := MEMBARRIER.get(platform.machine()):
        ctypes.CDLL(None).syscall(number, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0)


kept: dict[str, ModuleType] = {}
"""The modules that were loaded before the fork."""
# At exit they would remove from the dispatcher what torch's Python modules have added to it.
FINALIZERS = weakref.finalize._registry  # type: ignore[attr-defined]


def keep_modules() -> None:
    """Prevents that Python clears `kept` at exit: that copies all their pages, and takes longer
    than most programs run. Modules that the program loaded are cleared as usual."""
    for name, module in kept.items():
        if name not in ("__main__", "builtins", "sys") and sys.modules.get(name) is module:
            del sys.modules[name]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def join_pages() -> None:
    """Merges small pages into large ones, as a fork copies a page table entry for each. A kernel
    that cannot do so returns an error, which only costs time."""
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, file, *name = line.split()
        if access.startswith("rw") and file == "0" and name in ([], ["[heap]"]):
            first, end = (int(address, 16) for address in addresses.split("-"))
            for page in range(-(-first // LARGE_PAGE) * LARGE_PAGE, end, LARGE_PAGE):
                if page + LARGE_PAGE <= end:
                    advise(page, LARGE_PAGE, MADV_COLLAPSE)


def answer(pipe: int, number: int) -> None:
    try:
        os.write(pipe, f"{number}\n".encode())
    except BrokenPipeError:
        return  # who asked no longer waits


class Server:
    """Waits for connections, requests and the ends of children."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._events = selectors.DefaultSelector()
        self._events.register(listener, selectors.EVENT_READ)
        self._connections: set[socket.socket] = set()

    def serve(self) -> tuple[dict[str, Any], list[int]]:
        """Returns in a child, with its request and the descriptors that came with it; the server
        itself ends in here."""
        while True:
            for key, _ in self._events.select():
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    self._connections.add(connection)
                    self._events.register(connection, selectors.EVENT_READ)
                elif key.data is not None:
                    self._report_end(key.fd, *key.data)
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    if (request := self._receive(key.fileobj)) is not None:
                        return request

    def _receive(self, connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
        """Only in a child, a request."""
        text, descriptors, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, 3)
        if not text:
            self._events.unregister(connection)
            self._connections.remove(connection)
            connection.close()
            if not self._connections:
                os._exit(0)  # there is nothing to tidy
            return None
        pid = os.fork()
        if pid == 0:
            self._close()
            return json.loads(text), descriptors
        if len(descriptors) == 1:
            os.close(descriptors[0])  # the new server's, which ends by itself
            return None
        *outputs, pipe = descriptors
        for descriptor in outputs:
            os.close(descriptor)
        answer(pipe, pid)
        self._events.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, pipe))
        return None

    def _report_end(self, pidfd: int, pid: int, pipe: int) -> None:
        self._events.unregister(pidfd)
        os.close(pidfd)
        answer(pipe, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os.close(pipe)

    def _close(self) -> None:
        """Closes all resources that a child inherits from its server."""
        for key in list(self._events.get_map().values()):
            os.close(key.fd)
            if key.data is not None:
                os.close(key.data[1])
        self._events.close()
        for owner in (self._listener, *self._connections):
            owner.detach()


def skip_destructors() -> None:
    """Ends this process where the static destructors of torch would begin.

    They run behind the end of Python and what was loaded since: the allocator's extension, the
    libraries of the program. They take ten times as long as a fork.
    """
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # it is given the exit status
    libc.__cxa_atexit(libc.fflush, None, None)  # runs before: the last that is set runs first


def become(request: dict[str, Any], out: int, errors: int, pipe: int) -> None:
    """The process that `python PROGRAM ARGUMENTS` would be."""
    os.setsid()
    os.dup2(out, 1)
    os.dup2(errors, 2)
    for descriptor in (out, errors, pipe):
        os.close(descriptor)
    if request["destructors"]:
        kept.clear()
        for finalizer in FINALIZERS:
            finalizer.atexit = True
    else:
        skip_destructors()
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    sys.argv[:] = request["words"]
    sys.path[0] = str(Path(sys.argv[0]).absolute().parent)
    if str(NO_EXTENSION) in os.environ["PYTHONPATH"].split(os.pathsep):
        runpy.run_path(str(NO_EXTENSION / "sitecustomize.py"))
    if request["machine"] is not None:
        _activate.activate(**request["machine"])
    runpy.run_path(sys.argv[0], run_name="__main__")


def main() -> None:
    listening = int(sys.argv[1])
    load_torch()
    while True:
        freeze()
        listener = socket.socket(fileno=listening)
        listener.set_inheritable(False)
        request, descriptors = Server(listener).serve()
        if len(descriptors) > 1:
            become(request, *descriptors)
            return
        (listening,) = descriptors
        load(request["modules"])


if __name__ == "__main__":
    main()
