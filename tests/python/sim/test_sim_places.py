"""The places of reads: in backward passes, and under Python's own library."""

from __future__ import annotations

import pytest

from tests.python.sim.conftest import Simulate

UNKNOWN = """\
import contextlib, functools, threading, torch
weights = torch.randn(1024, 1024, device="cuda", requires_grad=True)
unknown = weights @ weights
"""
MASK = f"""\
{UNKNOWN}
keep = unknown.detach()[:, 0] > 0
loss = unknown[keep].sum()
loss.backward()
"""
ONE_LINE = f"{UNKNOWN}\nunknown[unknown.detach() > 0].sum().backward()"
GRADIENT = (
    f"{UNKNOWN}\nloss = unknown[unknown.detach() > 0].sum()\ntorch.autograd.grad(loss, weights)"
)
THREAD = f"""\
{UNKNOWN}
def work():
    unknown[unknown.detach() > 0].sum().backward()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
SECOND = f"""\
{UNKNOWN}
loss = unknown[unknown.detach() > 0].sum()
(gradient,) = torch.autograd.grad(loss, weights, create_graph=True)
gradient.sum().backward()
"""
FUNCTION = f"""\
{UNKNOWN}
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1
    @staticmethod
    def backward(ctx, gradient):
        assert gradient.mul(unknown.detach())[0, 0].item() == 0
        return gradient
Own.apply(unknown).sum().backward()
"""
RECOMPUTED = f"""\
{UNKNOWN}
from torch.utils.checkpoint import checkpoint
calls = []
def part(x):
    calls.append(int(x.detach().sum()) if calls else 0)
    return x * x
checkpoint(part, unknown, use_reentrant=REENTRANT).sum().backward()
assert len(calls) == 2
"""


@pytest.mark.parametrize(
    ("program", "place"),
    [
        (MASK, "train.py:7 (IndexBackward0)"),
        (ONE_LINE, "train.py:5 (IndexBackward0)"),
        (GRADIENT, "train.py:6 (IndexBackward0)"),
        (THREAD, "train.py:6 (IndexBackward0)"),
        (SECOND, "train.py:6 (IndexBackward0)"),
        (FUNCTION, "train.py:11"),
        (RECOMPUTED.replace("REENTRANT", "True"), "train.py:8"),
        (RECOMPUTED.replace("REENTRANT", "False"), "train.py:8"),
    ],
    ids=["mask", "one line", "gradient", "thread", "second", "function", "reentrant", "checkpoint"],
)
def test_the_place_of_a_read_in_a_backward_pass(
    simulate: Simulate, program: str, place: str
) -> None:
    # A process that ends while a thread of autograd releases a graph may abort.
    done, result = simulate(f"{program}\nimport time; time.sleep(0.3)", "--rows", "zeros")
    assert done.returncode == 13, done.stderr
    places = [read["place"] for read in result["uncomputed"]]
    assert place in places
    assert not any("outside of Python" in each for each in places)
    assert (
        f"ferro_alloc: {place} reads values that the simulated GPU did not compute" in done.stderr
    )
    assert f"    {place} (" in done.stderr


STANDARD = {
    "contextlib": "with contextlib.ExitStack() as stack: stack.callback(unknown[0, 0].item)",
    "functools": "functools.singledispatch(lambda tensor: tensor[0, 0].item())(unknown)",
    "deepcopy": "import copy; copy.deepcopy([unknown[0, 0].tolist()])",
}


@pytest.mark.parametrize("call", STANDARD)
def test_the_place_of_a_read_under_pythons_own_library(simulate: Simulate, call: str) -> None:
    done, result = simulate(f"{UNKNOWN}\n{STANDARD[call]}")
    assert [read["place"] for read in result["uncomputed"]] == ["train.py:5"], done.stderr
