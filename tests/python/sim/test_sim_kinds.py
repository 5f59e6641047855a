"""Kinds and lines of modules that are copies."""

from __future__ import annotations

import pytest

from tests.python.sim.conftest import Simulate

MIB = 1 << 20
START = """\
import copy, io, pickle, torch
from concurrent.futures import ThreadPoolExecutor
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False)] * 2)
        self.register_buffer("table", torch.zeros(1024, 1024))
        self.table.requires_grad_(False)
net = Net().cuda()
"""
OWN_STATE = """\
class Bare(Net):
    def __setstate__(self, state):
        self.__dict__ = state
net = Bare().cuda()
"""
# A module that its class compares by what it does not have while it is made.
EQUAL = """\
class Equal(Net):
    def __init__(self):
        super().__init__()
        self.width = 3
    def __eq__(self, other):
        return self.width == other.width
    def __hash__(self):
        return self.width
net = Equal().cuda()
"""
LEFT = "copied = Net.__new__(Net)\ncopied.__dict__.update(copy.deepcopy(vars(net)))"
COPIES = {
    "deepcopy": "copied = copy.deepcopy(net)",
    "frozen": "copied = copy.deepcopy(net).requires_grad_(False)",
    "averaged": "copied = torch.optim.swa_utils.AveragedModel(net)",
    "pickled": "copied = pickle.loads(pickle.dumps(net))",
    "in a list": "copied = copy.deepcopy({'target': [net]})",
    "own state": f"{OWN_STATE}copied = copy.deepcopy(net)",
    "own state in a module": f"{OWN_STATE}copied = copy.deepcopy(torch.nn.Sequential(net))",
    "without state": LEFT,
    "equal": f"{EQUAL}copied = copy.deepcopy(net)",
}


@pytest.mark.parametrize("allocator", ["native", "ferro_alloc"])
@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_of_a_module_has_its_kinds_and_the_programs_line(
    simulate: Simulate, copied: str, allocator: str
) -> None:
    program = f"{START}{COPIES[copied]}\ntorch.zeros(1 << 20, device='cuda')\n"
    done, result = simulate(program, "--allocator", allocator)
    assert done.returncode == 0, done.stderr
    (device,) = result["devices"]
    # The one layer is in the module twice.
    assert device["kinds"]["parameters"] == 2 * 4 * MIB
    assert device["kinds"]["buffers"] // MIB == 2 * 4
    line = program[: program.index("copied = ")].count("\n") + 1
    line += "update(" in program
    files = {(held["file"].rpartition("/")[2], held["line"]) for held in device["lines"]}
    assert {file for file, _ in files} == {"train.py"}
    assert ("train.py", line) in files


def test_a_copy_has_its_kind_where_a_request_fails(simulate: Simulate) -> None:
    program = f"{START}{COPIES['without state']}\ntorch.empty(1 << 34, device='cuda')\n"
    done, result = simulate(program, "--memory", "2g")
    assert done.returncode == 12, done.stderr
    assert result["out_of_memory"]["kinds"]["parameters"] == 8 * MIB


THREADS = f"""\
{START}
with ThreadPoolExecutor() as pool:
    kept = pool.submit(torch.empty, 1 << 26, device="cuda").result()
"""


def test_a_request_in_a_thread_of_pythons_library(simulate: Simulate) -> None:
    done, result = simulate(THREADS)
    (held,) = (each for each in result["devices"][0]["lines"] if each["bytes"] == 256 * MIB)
    assert (held["file"].rpartition("/")[2], held["line"]) == ("train.py", 12), done.stderr
