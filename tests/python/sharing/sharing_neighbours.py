"""Sharing beside processes that are malicious, stopped or ended. Every check returns True.

The other process cannot take descriptors by itself, so it requests them from the socket of this
one.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.python.feature_checks import MIB, check, error_of, finish

os.environ["SHARING_PEER"] = json.dumps(
    {
        "parent": os.getpid(),
        "allocator": "ferro",
        "sim": {"memory": "1GiB"},
        "simulated": True,
        "refuse_pidfd": True,
    }
)

import torch
import torch.multiprocessing
from sharing_peer import OtherProcess, filled, is_filled

_other = OtherProcess()
ask = _other.ask


class Server(NamedTuple):
    """The fields of a handle that describe the process which hands out its descriptors."""

    request_key: bytes
    answer_key: bytes
    name: bytes

    @classmethod
    def of(cls, handle: bytes) -> "Server":
        fields = struct.Struct("<8sQQ16s16sI")
        at = handle.index(b"ferroip2")
        _, _, _, request_key, answer_key, length = fields.unpack_from(handle, at)
        name = handle[at + fields.size :][:length]
        return cls(request_key, answer_key, b"\0" + name)


def connect(server: Server) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(server.name)
    return connection


def reply_to(server: Server, message: bytes) -> bytes:
    """Empty when the connection was closed without an answer."""
    with connect(server) as connection:
        connection.sendall(message)
        try:
            return connection.recv(4096)
        except ConnectionResetError:
            return b""


def request(key: bytes, *ids: int) -> bytes:
    return b"ferroask" + key + struct.pack(f"<{len(ids)}Q", *ids)


def is_served(tag: int) -> bool:
    """Whether the other process can open new memory."""
    return bool(ask("check", filled(4 * MIB, tag), tag))


_mine = filled(4 * MIB, 1)
_device, _handle, *_rest = _mine.untyped_storage()._share_cuda_()
SERVER = Server.of(_handle)


@check
def a_process_with_the_key_is_answered() -> bool:
    answer = reply_to(SERVER, request(SERVER.request_key, 1))
    return answer[:16] == SERVER.answer_key and is_served(2)


@check
def a_process_of_the_same_user_without_the_key_gets_nothing() -> bool:
    program = f"""
import socket
for key in (bytes(16), {SERVER.answer_key!r}, {SERVER.request_key[:15] + b"!"!r}):
    for id in range(1, 20):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect({SERVER.name!r})
        connection.sendall(b"ferroask" + key + id.to_bytes(8, "little"))
        assert connection.recv(4096) == b""
"""
    return subprocess.run([sys.executable, "-c", program]).returncode == 0 and is_served(3)


@check
def an_invalid_request_gets_nothing() -> bool:
    whole = request(SERVER.request_key, 1)
    # Only the ids, garbage, parts of a request, a request with half an id, and one with too many
    # ids.
    messages = [struct.pack("<Q", 1), os.urandom(300), whole[:12], whole[:-8], whole + b"1234"]
    messages.append(request(SERVER.request_key, *range(1, 300)))
    return not any(reply_to(SERVER, message) for message in messages) and is_served(4)


@check
def half_closed_connections_delay_no_other_process() -> bool:
    with connect(SERVER) as silent, connect(SERVER) as deaf:
        silent.shutdown(socket.SHUT_WR)
        deaf.shutdown(socket.SHUT_RD)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            deaf.sendall(request(SERVER.request_key, 1))
        return silent.recv(1) == b"" and is_served(5)


@check
def stopped_processes_delay_no_other_process() -> bool:
    program = """
import os, signal, socket
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect({name!r})
connection.sendall({message!r}) if {message!r} else None
os.kill(os.getpid(), signal.SIGSTOP)
"""
    stopped = []
    for message in (b"", request(SERVER.request_key, 1)):
        text = program.format(name=SERVER.name, message=message)
        stopped.append(subprocess.Popen([sys.executable, "-c", text]))
        os.waitpid(stopped[-1].pid, os.WUNTRACED)
    served = is_served(6)
    for process in stopped:
        process.kill()
        process.wait()
    return served


@check
def a_thousand_connections() -> bool:
    # A quarter of the limit is for connections.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, most))
    connections = [connect(SERVER) for _ in range(1000)]
    served = is_served(7)
    for connection in connections:
        with connection:
            connection.sendall(request(SERVER.request_key, 1))
            served &= connection.recv(4096)[:16] == SERVER.answer_key
    return served


def sockets_of(process: int) -> set[str]:
    links = set()
    for link in Path(f"/proc/{process}/fd").iterdir():
        # The descriptor that read the folder is closed by now.
        with contextlib.suppress(FileNotFoundError):
            links.add(str(link.readlink()))
    return links


@check
def a_child_of_fork_does_not_listen() -> bool:
    name = SERVER.name[1:].decode()
    reader, writer = os.pipe()
    with connect(SERVER):
        # Its listener, and the accepted end of the connection.
        lines = Path("/proc/net/unix").read_text().splitlines()
        serving = {f"socket:[{line.split()[6]}]" for line in lines if line.endswith(f"@{name}")}
        child = os.fork()
        if child == 0:
            os.write(writer, b"!")
            signal.pause()
        try:
            os.read(reader, 1)
            here, there = sockets_of(os.getpid()), sockets_of(child)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return bool(serving & here) and not serving & there and is_served(8)


@check
def a_process_out_of_descriptors_is_reported() -> bool:
    shared = filled(4 * MIB, 10)
    shared.untyped_storage()._share_cuda_()
    low, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with connect(SERVER) as connection:
        # The connection is accepted by the time that another one is answered.
        is_served(11)
        spare = os.dup(0)
        os.close(spare)
        resource.setrlimit(resource.RLIMIT_NOFILE, (spare, most))
        try:
            connection.sendall(request(SERVER.request_key, 1))
            answer = connection.recv(4096)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (low, most))
    no_room = 4
    return answer == SERVER.answer_key + struct.pack("<Q", no_room) and is_served(12)


@check
def a_stopped_sender_keeps_its_receiver_waiting_for_ten_seconds() -> bool:
    """It delays no other thread of the receiver, and no thread that opens other memory."""
    device, handle, *rest = filled(4 * MIB, 13).untyped_storage()._share_cuda_()
    pids = os.getpid(), _other.process.pid
    program = (
        "import os, signal, sys, time\n"
        "os.kill(int(sys.argv[1]), signal.SIGSTOP)\n"
        "time.sleep(14)\n"
        "os.kill(int(sys.argv[1]), signal.SIGCONT)\n"
    )
    waker = subprocess.Popen([sys.executable, "-c", program, str(pids[0])])
    answer = ask("open_while_its_sender_is_stopped", pids[0], (device, handle, *rest))
    waker.wait()
    seconds, kind, text, most_between_ticks = answer
    assert kind == "RuntimeError", answer
    assert "no answer within 10 s; the process that shared it is stopped" in text, text
    assert 9 < seconds < 14, answer
    return most_between_ticks < 3 and is_served(14)


@check
def a_sender_that_has_ended_is_reported() -> bool:
    device, handle, size, offset, counter, counter_offset, event, _ = ask("share", "last", MIB, 9)
    changed = handle[:26] + b"\xff" * 4 + handle[30:]

    def open_it(text: bytes) -> Any:
        arguments = (device, text, size, offset, counter, counter_offset, event, False)
        return torch.UntypedStorage._new_shared_cuda(*arguments)

    os.kill(_other.process.pid, signal.SIGSTOP)
    # Its descriptors are taken without its help.
    opened = open_it(handle)
    words = torch.empty(0, dtype=torch.int32, device="cuda").set_(opened)
    filled_by_it = is_filled(words, 9)
    _other.process.kill()
    _other.process.join()
    squatter = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    squatter.bind(Server.of(handle).name)
    squatter.listen(8)
    seen = [error_of(lambda: open_it(changed))]
    squatter.close()
    seen.append(error_of(lambda: open_it(changed)))
    expected = "cannot be opened here: the process that shared it has ended."
    return filled_by_it and all(expected in text for _, text in seen)


finish()
