"""Calls of NVIDIA's libraries: their requests, compared with an H200's, and values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunSimulated

pytestmark = pytest.mark.no_extension

DATA = Path(__file__).parent


def last_line(run: RunSimulated, program: str | Path, *arguments: str, **activate: Any) -> Any:
    return json.loads(run(program, *arguments, **activate).stdout.splitlines()[-1])


# The buffers of triangular solvers differ by 1 to 2 %.
SOLVED = [
    f"tri_csr({n});r({n},{sides})|torch.triangular_solve(b,a,upper=False{option})|"
    for n in (3, 50, 300)
    for sides in (8, 1)
    for option in ("", ",transpose=True", ",unitriangular=True")
]
# The host leaves out places that only one of the factors has.
OVERLAPS = [
    f"coo({n});coo({m})|a*b|" for n, m in (("5,4,7", "5,4,8"), ("100,80,500", "100,80,400"))
]
LEAST_SQUARES = [
    f"r({a});r({b},{n})|torch.linalg.lstsq(a,b)|"
    for a, b in (
        *(("6,3", "6"), ("4,8,4", "4,8"), ("8,32,16", "8,32"), ("66,33", "66")),
        *(("200,100", "200"), ("5,200,100", "5,200")),
    )
    for n in (1, 8)
]
EIGENVALUES = [f"good({n},dtype=c64)|torch.linalg.eig(a)|" for n in (100, 300)]
# The products with Q have derived workspaces; those of small matrices in batches have none.
DERIVED = [
    *LEAST_SQUARES[:2],
    *LEAST_SQUARES[6:8],
    EIGENVALUES[0],
    *LEAST_SQUARES[8:],
    EIGENVALUES[1],
]


@pytest.mark.parametrize(
    ("family", "cases", "compared", "unequal", "unknown"),
    [
        ("fft", 174, 78, [], []),
        ("sparse", 234, 114, SOLVED, OVERLAPS),
        ("linalg", 465, 255, DERIVED, LEAST_SQUARES[:8]),
        ("ctc", 22, 12, [], []),
    ],
    ids=["fft", "sparse", "linalg", "ctc"],
)
def test_calls_request_what_they_request_on_a_gpu(
    run_simulated: RunSimulated,
    family: str,
    cases: int,
    compared: int,
    unequal: list[str],
    unknown: list[str],
) -> None:
    """A call is `unequal` if its requests differ, and `unknown` if its values were not computed."""
    found = last_line(run_simulated, "sim_library_calls.py", family, gpu="h200")
    assert found["failed"] == []
    assert (found["requests"], found["values"]) == (unequal, unknown)
    assert (found["cases"], found["compared"]) == (cases, compared)


def test_plans_of_other_sizes_have_nearly_the_work_area_of_a_gpu(
    run_simulated: RunSimulated,
) -> None:
    """`library_plans.json` has a tenth of all measured plans, which are not in measured.inc."""
    found = last_line(run_simulated, "sim_library_plans.py", gpu="h200")
    assert found["plans"] == 1113
    assert found["equal"] >= 0.84 * found["plans"]
    assert found["near"] >= 0.98 * found["plans"]
