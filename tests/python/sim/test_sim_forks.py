"""A fork under ferro_alloc has a simulated GPU like a real one, and programs of tests are forks."""

from __future__ import annotations

import json
from pathlib import Path

from tests import programs
from tests.conftest import RunSimulated

FORKS = """\
import json, os
import torch
import ferro_alloc
ferro_alloc.install(strict=True)


def in_child(use):
    ends = os.pipe()
    if os.fork() == 0:
        try:
            said = use()
        except RuntimeError as error:
            said = str(error)
        os.write(ends[1], json.dumps(said).encode())
        os._exit(0)
    os.close(ends[1])
    with os.fdopen(ends[0]) as answer:
        return json.loads(answer.read())


def use():
    x = torch.ones(1 << 20, device="cuda")
    return torch.cuda.get_allocator_backend(), torch.cuda.mem_get_info()[0] >> 20


before = in_child(use), in_child(use)
here = use()
print(json.dumps([*before, here, in_child(lambda: torch.cuda.mem_get_info())]))
"""


def test_a_fork_has_the_card_until_its_parent_used_it(run_simulated: RunSimulated) -> None:
    """As on a GPU, where cuInit ends the driver for later forks."""
    first, second, here, after = json.loads(run_simulated(FORKS, memory="1GiB").stdout)
    assert first == second == here
    assert here[0] == "ferro_alloc"
    assert here[1] < 1024
    assert "initialization error" in after or "forked subprocess" in after


def test_processes_that_run_tests_share_a_server(tmp_path: Path) -> None:
    """A second connection stands for another process. The compiler's server is a child."""
    program = tmp_path / "parents.py"
    program.write_text(
        "import os\n"
        "from pathlib import Path\n"
        "parent = os.getppid()\n"
        "print(parent, Path(f'/proc/{parent}/stat').read_text().rpartition(')')[2].split()[1])\n"
    )

    def parents(server: programs.ForkServer) -> list[str]:
        return server.run([str(program)], None, {}, False).stdout.split()

    plain = parents(programs._fork_server(frozenset(), False))
    connect = programs._fork_server.__wrapped__
    assert parents(connect(frozenset(), False)) == plain
    compiler = parents(programs._fork_server(frozenset(), True))
    assert compiler[0] != plain[0] == compiler[1]
    assert parents(connect(frozenset(), True)) == compiler
