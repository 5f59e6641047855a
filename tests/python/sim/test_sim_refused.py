"""Programs that the simulated GPU refused an operator, because it does not have its library."""

from __future__ import annotations

import pytest

from tests.python.sim.conftest import Result, Simulate

OTHERWISE = "so it may have ended earlier or taken another way than on a card"

START = """\
import sys, torch
a, blocks = torch.eye(64, device="cuda"), torch.eye(64).to_sparse_bsr((4, 4)).cuda()
"""
CAUGHT = f"""\
{START}
try:
    CALL
except RuntimeError:
    print("refused")
kept = torch.empty(1 << 20, device="cuda")
"""
PRODUCT = "blocks @ a[0]"
# Each call, the library that it needs, and the operator that was refused.
CALLS = {
    PRODUCT: ("cuSPARSE", "aten::addmv.out"),
}


def went_on(result: Result) -> list[tuple[str, str, str, int, bool]]:
    keys = ("place", "operator", "library", "count", "ended")
    return [tuple(each[key] for key in keys) for each in result["refused"]]  # type: ignore[misc]


@pytest.mark.parametrize("call", CALLS)
def test_a_program_that_catches_a_refusal_fits_as_far_as_known(
    simulate: Simulate, call: str
) -> None:
    library, operator = CALLS[call]
    done, result = simulate(CAUGHT.replace("CALL", call))
    assert (done.returncode, done.stdout) == (13, "refused\n"), done.stderr
    assert result["verdict"] == "fits as far as known"
    assert went_on(result) == [("train.py:5", operator, library, 1, False)]
    assert result["refused"][0]["message"]
    assert "\n  FITS AS FAR AS KNOWN, with " in done.stderr
    assert (
        "  the program went on after calls that the simulated GPU refused:\n"
        f"    train.py:5 (once): {operator} needs functions of {library} that the simulated GPU "
        f"lacks (do it on the CPU)\n  {OTHERWISE}"
    ) in done.stderr


IN_BACKWARD = f"""\
{START}
class Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, gradient):
        return blocks @ gradient[0]
x = a.clone().requires_grad_()
for _ in range(3):
    try:
        Solve.apply(x).sum().backward()
    except RuntimeError:
        pass
# A process that ends while a thread of autograd releases a graph may abort.
__import__("time").sleep(0.3)
"""
IN_OPERATOR = f"""\
{START}
@torch.library.custom_op("ferro_test::solve", mutates_args=())
def solve(x: torch.Tensor) -> torch.Tensor:
    try:
        return blocks @ x[0]
    except RuntimeError:
        return x.clone()
solve(a)
"""
RAISED_AGAIN = f"""\
{START}
def solve():
    try:
        return blocks @ a[0]
    except RuntimeError as error:
        raise ValueError("not positive") from error
try:
    solve()
except ValueError:
    pass
"""


@pytest.mark.parametrize(
    ("program", "place", "count"),
    [
        (IN_BACKWARD, "train.py:10", 3),
        (IN_OPERATOR, "train.py:7", 1),
        (RAISED_AGAIN, "train.py:6", 1),
    ],
    ids=["backward", "operator", "raised again"],
)
def test_where_a_refusal_was_caught(
    simulate: Simulate, program: str, place: str, count: int
) -> None:
    done, result = simulate(program)
    assert done.returncode == 13, done.stderr
    expected = (place, "aten::addmv.out", "cuSPARSE", count, False)
    assert expected in went_on(result)


@pytest.mark.parametrize("options", [(), ("--no-values",)])
def test_a_program_that_runs_out_after_a_refusal(
    simulate: Simulate, options: tuple[str, ...]
) -> None:
    program = CAUGHT.replace("CALL", PRODUCT).replace("1 << 20", "1 << 32")
    done, _ = simulate(program, "--memory", "2g", *options)
    assert done.returncode == 12, done.stderr
    assert "DOES NOT FIT AS FAR AS KNOWN" in done.stderr
    assert "train.py:5 (once): aten::addmv.out needs functions of cuSPARSE" in done.stderr


UNUSED = """\
import ctypes, torch
driver = ctypes.CDLL("libcuda.so.1")
found = ctypes.c_void_p()
assert driver.cuGetExportTable(ctypes.byref(found), bytes(16)) == 801
kept = torch.empty(1 << 20, device="cuda")
"""


def test_an_unsupported_call_that_raises_nothing_changes_no_verdict(simulate: Simulate) -> None:
    done, result = simulate(UNUSED)
    assert (done.returncode, result["verdict"]) == (0, "fits"), done.stderr
    assert result["refused"] == []
    assert "calls that are not simulated: cuGetExportTable" in done.stderr


ENDS = f"""\
{START}
read = (a @ a).to(torch.float64).cpu()
def solve():
    MORE
    return blocks @ a[0]
solve()
"""
FROM = f"try: {PRODUCT}\n    except RuntimeError as e: raise ValueError('no') from e"
EXITS = f"try: {PRODUCT}\n    except RuntimeError as error: sys.exit('no')"
SAID = "aten::addmv.out needs functions of cuSPARSE that the simulated GPU lacks"


@pytest.mark.parametrize("more", ["pass", FROM, EXITS], ids=["itself", "from", "exit"])
def test_a_program_that_a_refusal_ends(simulate: Simulate, more: str) -> None:
    done, result = simulate(ENDS.replace("MORE", more))
    assert (done.returncode, result["verdict"]) == (1, "unknown"), done.stderr
    line = 7 if more == "pass" else 6
    (refused,) = (each for each in result["refused"] if each["ended"])
    assert (refused["place"], refused["count"]) == (f"train.py:{line}", 1)
    assert result["ended_by"] == ""
    report = done.stderr[done.stderr.index("\nsimulated ") :].splitlines()
    assert report[2].startswith(
        "  NOT KNOWN: the simulated GPU lacks functions of cuSPARSE, and that ended the program. "
        "Until then it FITS, with "
    )
    assert report[3] == f"  train.py:{line}: {SAID} (do it on the CPU)"
    assert "went on after" not in done.stderr


def test_another_end_after_a_refusal_is_the_programs_own(simulate: Simulate) -> None:
    program = CAUGHT.replace("CALL", PRODUCT) + "sys.exit(3)\n"
    done, result = simulate(program)
    assert (done.returncode, result["verdict"]) == (3, "unknown"), done.stderr
    assert not any(each["ended"] for each in result["refused"])
    assert "it ended with status 3" in done.stderr
    assert f"train.py:5 (once): {SAID}" in done.stderr


def test_a_comparison_names_what_was_refused(simulate: Simulate) -> None:
    done, result = simulate(CAUGHT.replace("CALL", PRODUCT), "--compare")
    assert (done.returncode, result["exit_status"]) == (13, 13), done.stderr
    assert "  it fits as far as known under native, expandable, ferro_alloc\n" in done.stderr
    assert done.stderr.count(f"train.py:5 (once): {SAID}") == 1
    assert done.stderr.count("  calls that are not simulated: cuSPARSE in ") == 1


LONG = f"""\
{ENDS.replace("MORE", "torch.empty(2, device='cuda')")}
"""
DEEP = LONG.replace("\nsolve()", "\ndef deep(n):\n    deep(n - 1) if n else solve()\ndeep(40)")


@pytest.mark.parametrize("program", [LONG, DEEP], ids=["short", "deep"])
def test_a_comparison_of_a_program_that_a_refusal_ends(simulate: Simulate, program: str) -> None:
    done, result = simulate(program, "--compare")
    assert (done.returncode, result["exit_status"]) == (1, 1), done.stderr
    lines = done.stderr.splitlines()
    assert sum("not known: no cuSPARSE" in line for line in lines) == 3
    assert lines.count(f"  train.py:7: {SAID} (do it on the CPU)") == 1
    ends = [line for line in lines if line.startswith("    RuntimeError: ")]
    assert len(ends) == 1
    assert "  its last lines under native, expandable, ferro_alloc:" in lines
    assert lines[-1].startswith("  calls that are not simulated: cuSPARSE in ")
    assert lines[-1].endswith("(do it on the CPU)")
    assert all(each["refused"][-1]["ended"] for each in result["runs"])
