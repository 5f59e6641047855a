"""What follows from drawn choices, such as the experts of a router, has the sizes of the draw."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import RunSimulated

pytestmark = pytest.mark.no_extension

EXPERTS = 8
PER_EXPERT = {
    "topk": 2,
    "topk_of_columns": 2,
    "argmax": 1,
    "multinomial": 2,
    "repeated_multinomial": 2,
    "sorted_assignments": 2,
    "scattered_one_hot": 2,
    "one_hot_of_torch": 2,
    "counts": 2,
    "copied": 2,
}
"""Cases that give each expert its rows, and the experts of each row."""
MODES: dict[str, dict[str, Any]] = {
    "eager": {},
    "adversarial": {"mode": "adversarial", "seed": 3, "values": True},
    "clock": {"mode": "clock", "values": True},
}


def cases_of(run: RunSimulated, rows: int, *cases: str, **activate: Any) -> dict[str, Any]:
    # Unknown masks have no rows then, as by default in `simulate`.
    done = run(
        "sim_drawn_choices.py",
        *(str(rows), *cases),
        env={"FERRO_ALLOC_SIM_ROWS": "none"},
        **activate,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("mode", "rows"),
    [
        ("eager", 10),
        ("clock", 10),
        ("eager", 1_000_000),
        pytest.param("adversarial", 1_000_000, marks=pytest.mark.long),
    ],
)
def test_each_expert_gets_the_rows_that_chose_it(
    run_simulated: RunSimulated, mode: str, rows: int
) -> None:
    found = cases_of(run_simulated, rows, **MODES[mode])
    for case, per_row in PER_EXPERT.items():
        sizes = found[case]["rows"]
        assert found[case]["learned"] == ["drawn"], case
        assert sum(sizes) == per_row * rows, (case, sizes)
        assert max(sizes) <= rows
        if rows > 10:
            # Rows are drawn independently, so the experts are nearly but not exactly even.
            even = per_row * rows / EXPERTS
            assert all(abs(size - even) < 0.02 * even for size in sizes), (case, sizes)
            assert len(set(sizes)) > EXPERTS // 2, (case, sizes)
    kept = found["capacity"]["rows"]
    assert found["capacity"]["learned"] == ["drawn"]
    assert max(kept) <= rows // EXPERTS
    assert rows == 10 or min(kept) == rows // EXPERTS
    best = found["rows_in_order_of_their_scores"]
    assert best == {"rows": EXPERTS * [rows // 4], "learned": ["drawn"]}
    columns = found["written_columns"]
    assert columns["learned"] == ["drawn"]
    assert rows == 10 or all(abs(size - rows / 4) < 0.02 * rows for size in columns["rows"])
    # Where unknown values enter too, the result is unknown.
    assert found["mixed"] == {"rows": EXPERTS * [0], "learned": ["size"]}
    assert found["mixed_in_place"]["learned"] == ["size"]
    assert found["positions_in_a_mask"]["learned"] == ["integer"]
    assert found["unwritten"]["learned"] == ["size"]
    # Random numbers are known.
    assert found["random_masks"]["learned"] == []
    assert rows == 10 or all(
        abs(size - rows / 2) < 0.02 * rows for size in found["random_masks"]["rows"]
    )


def test_choices_of_millions_of_rows(run_simulated: RunSimulated) -> None:
    found = cases_of(run_simulated, 3_000_000, "topk", "sorted_assignments")
    for case in found.values():
        assert sum(case["rows"]) == 2 * 3_000_000
        assert case["learned"] == ["drawn"]


def test_equal_programs_draw_equal_choices(run_simulated: RunSimulated) -> None:
    first, second = (cases_of(run_simulated, 1000, "topk", "argmax") for _ in range(2))
    assert first == second
    assert first["topk"] != first["argmax"]
