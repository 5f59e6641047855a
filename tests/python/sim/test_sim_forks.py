"""A fork under ferro_alloc has a simulated GPU like a real one."""

from __future__ import annotations

import json

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
