"""Operators on sparse tensors: their sizes, their values, and reports of those that are unknown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import RunSimulated

pytestmark = pytest.mark.no_extension

LATE = {"mode": "adversarial", "seed": 3, "values": True}

# Freed memory holds sevens, which no operator may take for the number of its rows.
UNKNOWN = """\
import json, sys, torch
from ferro_alloc import sim
def free_known_memory():
    junk = [torch.full((size,), 7, device="cuda") for size in (1, 64, 4096, 1 << 20)]
def make(values):
    return torch.sparse_coo_tensor(torch.tensor([[0, 0, 1], [0, 1, 2]]).cuda(), values, (3, 3))
large = torch.randn(3000, 3000, device="cuda")
unknown = (large @ large).view(-1)
few, many = (unknown[:n].gt(0).long()[None] for n in (1000, 5_000_000))
known = make(torch.ones(3, device="cuda")).coalesce()
other = make(torch.full((3,), 3.0, device="cuda")).coalesce()
learned = {}
def record(name, function):
    free_known_memory()
    before = {(read.place, read.operator): read.count for read in sim.uncomputed_reads()}
    result = function()
    learned[name] = [result] + [
        f"{read.operator} {read.learned}" for read in sim.uncomputed_reads()
        if read.count > before.get((read.place, read.operator), 0)
    ]
def rows(indices):
    ones = torch.ones(indices.shape[1], device="cuda")
    return torch.sparse_coo_tensor(indices, ones, (10,)).coalesce()._nnz()
def two_of_same():
    places = torch.cat([few, few])
    sparse = torch.sparse_coo_tensor(places, torch.ones(1000, device="cuda"), (3, 3))
    return torch.sparse.mm(sparse._coalesced_(True), known)._nnz()
def sum_of_two():
    rows = torch.tensor([0, 2, 3, 3], device="cuda")
    values = torch.ones(3, device="cuda")
    sparse = torch.sparse_csr_tensor(rows, few[0, :3], values, (3, 3), check_invariants=False)
    return (sparse + known.to_sparse_csr())._nnz()
def backward():
    values = torch.ones(3, device="cuda", requires_grad=True)
    torch.sparse.sum(torch.sparse.softmax(make(values), 1)).backward()
record("few", lambda: rows(few))
record("many", lambda: rows(many))
record("softmax_backward", backward)
record("two", two_of_same)
record("sum", sum_of_two)
record("product", lambda: (known * other)._values().tolist())
record("compressed", lambda: (known.to_dense() + known.to_sparse_csr()).tolist())
record("index", lambda: known.index_select(0, few[0, :5])._nnz())
print(json.dumps(learned))
"""


def last_line(run: RunSimulated, program: str, *arguments: str, **activate: Any) -> Any:
    return json.loads(run(program, *arguments, **activate).stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("elements", "activate"),
    [("60", {}), ("20000", {}), ("300", LATE), ("300", {"mode": "clock", "values": True})],
    ids=["small", "large", "adversarial", "clock"],
)
def test_sparse_results_are_those_of_the_host(
    run_simulated: RunSimulated, elements: str, activate: dict[str, Any]
) -> None:
    found = last_line(run_simulated, "sim_sparse_values.py", elements, **activate)
    assert found == {"cases": 38, "wrong": [], "reads": []}


@pytest.mark.parametrize(
    ("rows", "few", "many", "two", "sums"),
    [(None, 1, 1, 2, 4), ("none", 1, 1, 0, 3), ("all", 1000, 5_000_000, 9, 6)],
)
def test_sizes_and_values_that_are_unknown_are_reported(
    run_simulated: RunSimulated,
    monkeypatch: pytest.MonkeyPatch,
    rows: str | None,
    few: int,
    many: int,
    two: int,
    sums: int,
) -> None:
    if rows is not None:
        monkeypatch.setenv("FERRO_ALLOC_SIM_ROWS", rows)
    found = last_line(run_simulated, UNKNOWN)
    assert found["few"] == [few, "aten::_coalesce size"]
    assert found["many"] == [many, "aten::_coalesce size"]
    assert found["two"] == [two, "aten::_sparse_sparse_matmul size"]
    assert found["sum"] == [sums, "aten::add.out size"]
    assert found["softmax_backward"] == [None, "aten::_sparse_softmax_backward_data size"]
    assert "aten::copy_ float" in found["product"]
    assert "aten::copy_ float" in found["compressed"]
    assert "aten::index_select size" in found["index"]
