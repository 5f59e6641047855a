"""`python -m ferro_alloc top` with a running program: its output, and that the program never
waits."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferro_alloc import _top
from tests import programs
from tests.programs import ROOT
from tools.gpu import gpu_count

pytestmark = pytest.mark.skipif(gpu_count() > 0, reason="this machine has an NVIDIA GPU")

# Executes lines from one pipe and writes the results to another. Arguments: the two pipes.
PROGRAM = """\
import json, os, sys
import ferro_alloc
ferro_alloc.install()
import torch
from ferro_alloc import graphs
known = globals()
with open(sys.argv[1]) as told, open(sys.argv[2], "w") as answers:
    print(os.getpid(), file=answers, flush=True)
    for line in told:
        print(json.dumps(eval(line, known)), file=answers, flush=True)
"""


class Program:
    def __init__(self, folder: Path) -> None:
        script, *pipes = (folder / name for name in ("program.py", "told", "answers"))
        script.write_text(PROGRAM)
        for pipe in pipes:
            os.mkfifo(pipe)
        self._runner = threading.Thread(
            target=programs.run_simulated, args=([script, *pipes], {"memory": "4GiB"})
        )
        self._runner.start()
        self._told, self._answers = pipes[0].open("w"), pipes[1].open()
        self.pid = int(self._answers.readline())

    def do(self, line: str) -> Any:
        self.ask(line)
        return json.loads(self._answers.readline())

    def ask(self, line: str) -> None:
        self._told.write(line + "\n")
        self._told.flush()

    def end(self) -> None:
        self._told.close()
        self._runner.join()
        self._answers.close()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    yield made
    made.end()


def top(*words: str) -> str:
    command = [sys.executable, "-m", "ferro_alloc", "top", "--once", "--interval", "0.2", *words]
    done = programs.run(command, folder=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def seen(pid: int) -> dict[str, Any]:
    (found,) = [process for process in json.loads(top("--json")) if process["pid"] == pid]
    return dict(found)


BLOCKS = (
    "[known.update({n: torch.empty(s << 20, dtype=torch.uint8, device='cuda')}) for n, s in %s]"
)


def test_the_numbers_are_the_programs_own(program: Program) -> None:
    assert program.do("ferro_alloc.is_installed()")
    assert program.pid not in _top.processes()  # it has used no GPU yet
    program.do(BLOCKS % "[('a', 64), ('b', 8)]")
    program.do("known.__delitem__('b')")
    program.do("known.update(h=graphs.graph_pool_handle('decode', mem_pool=torch.cuda.MemPool()))")
    found = seen(program.pid)
    stats = program.do("torch.cuda.memory_stats()")
    (device,) = found["devices"]
    assert (found["active"], found["problem"], device["device"]) == (True, "", 0)
    assert device["allocated_bytes"] == stats["allocated_bytes.all.current"] == 64 << 20
    assert device["active_bytes"] == stats["active_bytes.all.current"]
    assert device["reserved_bytes"] == stats["reserved_bytes.all.current"]
    assert device["peak_reserved_bytes"] == stats["reserved_bytes.all.peak"] == 72 << 20
    assert device["peak_allocated_bytes"] == stats["allocated_bytes.all.peak"]
    assert device["requests"] == stats["allocation.all.allocated"] == 2
    assert device["misses"] == program.do("ferro_alloc.device().numbers().cache_stats.misses")
    assert device["requests_per_second"] == 0
    assert device["stranded_bytes"] == 0
    program.do("known.update(c=torch.empty(512, dtype=torch.uint8, device='cuda'))")
    (device,) = seen(program.pid)["devices"]
    assert device["stranded_bytes"] == (2 << 20) - 512


def test_memory_that_sleeps_is_neither_free_nor_reserved(program: Program) -> None:
    program.do("known.update(t=ferro_alloc.tag('weights')) or t.__enter__()")
    program.do(BLOCKS % "[('a', 64), ('b', 32)]")
    program.do("t.__exit__(None, None, None)")
    program.do(BLOCKS % "[('c', 16)]")
    program.do("ferro_alloc.sleep('weights').device_bytes")
    (device,) = seen(program.pid)["devices"]
    assert device["allocated_bytes"] == device["active_bytes"] == 112 << 20
    assert device["asleep_bytes"] == device["asleep_live_bytes"] == 96 << 20
    assert device["reserved_bytes"] == 16 << 20
    headings, *rows = [line.split() for line in top().splitlines()]
    (row,) = [row for row in rows if row[0] == str(program.pid)]
    # Each size takes two words.
    texts = map(" ".join, zip(row[2:14:2], row[3:14:2], strict=True))
    sizes = dict(zip(headings[2:8], texts, strict=True))
    assert sizes == {
        "LIVE": "0.11 GiB",
        "RESERVED": "16.00 MiB",
        "FREE": "0 B",
        "STRANDED": "0 B",
        "ASLEEP": "96.00 MiB",
        "PEAK": "0.11 GiB",
    }


def test_pools_have_their_names(program: Program) -> None:
    program.do("known.update(p=torch.cuda.MemPool()) or None")
    program.do("str(known.update(h=graphs.graph_pool_handle('decode\\nstep', mem_pool=p)))")
    program.do("known.update(u=torch.cuda.use_mem_pool(p)) or u.__enter__()")
    program.do(BLOCKS % "[('a', 32)]")
    program.do("u.__exit__(None, None, None)")
    (device,) = seen(program.pid)["devices"]
    assert device["pools"] == [{"name": "decode step", "reserved_bytes": 32 << 20}]
    # Other programs may run under ferro_alloc too.
    lines = [line.split() for line in top().splitlines()]
    own = next(i for i, words in enumerate(lines) if words[0] == str(program.pid))
    row, pool = lines[own : own + 2]
    assert row[:4] == [str(program.pid), "0", "32.00", "MiB"]
    assert pool == ["32.00", "MiB", "pool", "decode", "step"]


def test_tags_have_their_live_bytes(program: Program) -> None:
    program.do("known.update(t=ferro_alloc.tag('kv cache')) or t.__enter__()")
    program.do(BLOCKS % "[('a', 32), ('b', 16)]")
    program.do("t.__exit__(None, None, None)")
    program.do("known.__delitem__('b')")
    program.do(BLOCKS % "[('c', 4)]")
    (device,) = seen(program.pid)["devices"]
    assert device["tags"] == [{"name": "kv cache", "live_bytes": 32 << 20}]
    lines = [line.split() for line in top().splitlines()]
    own = next(i for i, words in enumerate(lines) if words[0] == str(program.pid))
    assert lines[own + 1] == ["32.00", "MiB", "tag", "kv", "cache"]


def test_requests_are_counted_between_two_looks(program: Program) -> None:
    program.do(BLOCKS % "[('a', 1)]")
    before = list(_top.look())
    program.do("[torch.empty(8, device='cuda') for _ in range(50)] and None")
    after = list(_top.look())
    (found,) = [p for p in _top.with_rates(after, before, 2.0) if p.pid == program.pid]
    assert found.devices[0].requests_per_second == 25
    # Statistics that began again have no rate.
    (found,) = [p for p in _top.with_rates(before, after, 2.0) if p.pid == program.pid]
    assert found.devices[0].requests_per_second is None


def test_it_answers_while_the_interpreter_is_busy(program: Program) -> None:
    program.do(BLOCKS % "[('a', 16)]")
    # One call that never lets another thread of Python run.
    program.ask("sum(range(10 ** 9)) and 1")
    (device,) = seen(program.pid)["devices"]
    assert device["allocated_bytes"] == 16 << 20
    os.kill(program.pid, 9)


def test_an_uninstall_is_reported(program: Program) -> None:
    program.do(BLOCKS % "[('a', 16)]")
    program.do("ferro_alloc.uninstall()")
    found = seen(program.pid)
    assert found["active"] is False
    assert found["devices"][0]["allocated_bytes"] == 16 << 20
    (row,) = [line for line in top().splitlines() if line.split()[0] == str(program.pid)]
    assert "[uninstalled]" in row


def test_peers_that_do_not_read_do_not_delay_others(program: Program) -> None:
    program.do(BLOCKS % "[('a', 1)]")
    silent = []
    for _ in range(200):
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.connect(f"\0ferro_alloc-status-{program.pid}")
        silent.append(peer)
    assert seen(program.pid)["devices"][0]["allocated_bytes"] == 1 << 20
    for peer in silent:
        peer.close()
    # A child has no server, and none of its parent's sockets.
    child = program.do("known.update(pid=os.fork()) or (os._exit(0) if pid == 0 else pid)")
    assert child not in _top.processes()


@pytest.mark.parametrize("text", ["ferro_alloc 1 1", "nonsense", "", "ferro_alloc 2 1\ndevice 0"])
def test_another_form_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="its report cannot be read"):
        _top.parse(text)


def test_the_row_of_a_process_has_its_problem() -> None:
    gone = _top.ProcessUse(12, "train.py", False, problem="timed out")
    assert _top.rows([gone], 100)[1].split() == ["12", *["-"] * 9, "train.py:", "timed", "out"]


def test_without_processes_top_reports_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_top, "processes", list)
    assert _top.main(["--once", "--interval", "0.01"]) == 0
    assert capsys.readouterr().out == (
        "none of your processes runs under ferro_alloc and has used a GPU\n"
    )
    assert _top.main(["--once", "--json", "--interval", "0.01"]) == 0
    assert capsys.readouterr().out == "[]\n"
