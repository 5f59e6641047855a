"""Starts programs from a process that has torch and the simulated GPU's libraries loaded already.

    fork_server.py DESCRIPTOR [MODULE ...]

Importing torch takes as long as a typical test, and so do the MODULES, parts of torch that some
programs need. So this process does it once, and forks for each program before CUDA is used;
settings, arguments and the machine are those of the child. It is driven by tests/programs.py
through the socket DESCRIPTOR. A request is a JSON object with three descriptors: the child's
output, its errors, and a pipe on which its number is answered at once and its exit code when it has
ended. The server ends when the socket is closed.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ferro_alloc.sim import _activate

LONGEST_REQUEST = 1 << 20
NO_EXTENSION = Path(__file__).resolve().parent / "no_extension"


def load(modules: Sequence[str]) -> None:
    _activate.preload()
    for name in ("torch", *modules):
        importlib.import_module(name)

    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads run, of which a child would have one"
    # What is here lives for ever: children need not look at it, nor copy its pages.
    gc.collect()
    gc.freeze()


def answer(pipe: int, number: int) -> None:
    try:
        os.write(pipe, f"{number}\n".encode())
    except BrokenPipeError:
        return  # who asked no longer waits


def serve(control: socket.socket) -> dict[str, Any]:
    """Returns in a child, with its request; the server itself ends in here."""
    events = selectors.DefaultSelector()
    events.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in events.select():
            if key.fileobj is not control:
                pid, pipe = key.data
                events.unregister(key.fileobj)
                os.close(key.fd)
                answer(pipe, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(pipe)
                continue
            text, (out, errors, pipe), _, _ = _receive(control)
            pid = os.fork()
            if pid == 0:
                os.setsid()
                os.dup2(out, 1)
                os.dup2(errors, 2)
                others = [key.fd for key in events.get_map().values() if key.fd != control.fileno()]
                pipes = [key.data[1] for key in events.get_map().values() if key.data]
                for descriptor in (out, errors, pipe, *others, *pipes):
                    os.close(descriptor)
                events.close()
                control.close()
                request: dict[str, Any] = json.loads(text)
                return request
            os.close(out)
            os.close(errors)
            answer(pipe, pid)
            events.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, pipe))


def _receive(control: socket.socket) -> tuple[bytes, list[int], int, Any]:
    received = socket.recv_fds(control, LONGEST_REQUEST, 3)
    if not received[0]:
        os._exit(0)  # the socket is closed; there is nothing to tidy
    return received


def skip_destructors() -> None:
    """Ends this process where the static destructors of torch would begin.

    They run behind the end of Python and what was loaded since: the allocator's extension, the
    libraries of the program. They take ten times as long as a fork.
    """
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # it is given the exit status
    libc.__cxa_atexit(libc.fflush, None, None)  # runs before: the last that is set runs first


def become(request: dict[str, Any]) -> None:
    """The process that `python PROGRAM ARGUMENTS` would be."""
    if not request["destructors"]:
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
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    load(sys.argv[2:])
    become(serve(control))


if __name__ == "__main__":
    main()
