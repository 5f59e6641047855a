"""Known values of any size: computed when they are read, and only then."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import RunSimulated

pytestmark = pytest.mark.no_extension

LATE = {"mode": "adversarial", "seed": 3, "values": True}
MODES = {"eager": {}, "adversarial": LATE, "clock": {"mode": "clock", "values": True}}

# Uncomputed indices stand for a mask and for sorted tokens.
DRAWN = """\
import json, torch
large = torch.randn(1000, 1000, device="cuda") @ torch.randn(1000, 1000, device="cuda")
none = (large > 0).nonzero().shape[0]
experts = large.argmax(1) % 8
counts = [(experts == expert).nonzero().shape[0] for expert in range(8)]
order = experts.sort()
same = torch.equal(experts[order.indices], order.values)
print(json.dumps({"none": none, "counts": counts, "same": same}))
"""

CAPTURED = """\
import json, torch
from ferro_alloc import sim
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    drawn = torch.rand(300_000, device="cuda")
    kept = drawn + 1
graph.replay()
kept.sum().item()
print(json.dumps(len(sim.uncomputed_reads())))
"""


# A graph that writes columns leaves those between them known, before it is replayed and after.
CAPTURED_COLUMNS = """\
import json, torch
from ferro_alloc import sim
def is_known(tensor):
    before = sum(read.count for read in sim.uncomputed_reads())
    tensor.cpu()
    return sum(read.count for read in sim.uncomputed_reads()) == before
table = torch.zeros(3000, 4, device="cuda")
cube = torch.zeros(6, 50, 4, 6, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    table[:, 1:3].add_(1)
    cube[:, ::2, 1, 2:4].mul_(2)
found = []
for _ in range(3):
    found.append([is_known(part) for part in (table[:, ::3], cube[..., 1], cube[:, 1::2])])
    found[-1] += [is_known(part) for part in (table[:, 1], table[-1, 2], cube[-1, -2, 1, 3])]
    table.fill_(3)
    cube.fill_(3)
    graph.replay()
print(json.dumps(found))
"""


# Two tensors have more elements than one may have.
MANY_ELEMENTS = """\
import json, torch
from ferro_alloc import sim
one = torch.ones(1, dtype=torch.bool, device="cuda")
found = []
for elements in (300 << 20, 600 << 20):
    same = torch.equal(one.expand(elements), torch.ones_like(one).expand(elements))
    found.append([same, len(sim.uncomputed_reads())])
print(json.dumps(found))
"""


# A tensor with gaps is one value with the bytes between its pieces.
GAPS = """\
import json, torch
from ferro_alloc import sim
from ferro_alloc.sim import _values
images = torch.zeros(4, 128, 128, 3, dtype=torch.uint8, device="cuda")
before = _values.counts()
images[..., 0] = 1
images[..., 1:] += 2
unread = _values.counts()["computed"] - before["computed"]
total, counts = images.sum().item(), _values.counts()
kept = [counts["values"] - before["values"], counts["bytes"] - before["bytes"]]
table = torch.empty(1000, 64, device="cuda")
table[:, 0::2] = torch.arange(1000, device="cuda")[:, None]
half = [table[3, 2].item(), table[:, ::2].sum().item(), len(sim.uncomputed_reads())]
table[:, 1::2] = 1
print(json.dumps([unread, total, kept, half, table.sum().item(), len(sim.uncomputed_reads())]))
table.add_(torch.empty(1000, 64, device="cuda"))[:, 5:60:2] = 3
print(json.dumps([table[9, 7].item(), len(sim.uncomputed_reads()),
                  table[9, 8].cpu().shape, len(sim.uncomputed_reads())]))
"""


# Millions of rows that a program fills column by column, and a column among unknown ones.
MANY_ROWS = """\
import json, resource, torch
from ferro_alloc import sim
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
ROWS = 6_000_000
table = torch.empty(ROWS, 3, dtype=torch.uint8, device="cuda")
unknown = torch.randn(1000, 1000, device="cuda") @ torch.randn(1000, 1000, device="cuda")
unknown = unknown.to(torch.uint8).view(-1).repeat(18).view(ROWS, 3)
torch.ones(1, device="cuda").item()
before = peak()
table[:, 0] = 1
table[:, 1] = 2
unknown[:, 1] = 3
taken = peak() - before
table[:, 2] = table[:, 0] + table[:, 1]
sums = [table[:, column].sum().item() // ROWS for column in range(3)]
found = [len(sim.uncomputed_reads())]
unknown[:, 1].sum().item()
found.append(len(sim.uncomputed_reads()))
print(json.dumps([sums, found, taken]))
"""


# Most pages of a table with a written column hold nothing, also in a copy of it.
COPIED_COLUMN = """\
import json, torch
from ferro_alloc import sim
def host_bytes():
    return sim.report()["devices"][0]["host_bytes"]
table = torch.empty(3000, 40_000, device="cuda")
table[:, 7] = torch.arange(3000, device="cuda")
held = [host_bytes()]
copy = torch.empty_like(table[1:])
copy.copy_(table[1:])
held.append(host_bytes() - held[0])
print(json.dumps([held, copy[:, 7].sum().item(), len(sim.uncomputed_reads())]))
"""


# Rows that are longer than those for which one kernel finds the mode.
MODES_OF_UNKNOWN = """\
import json, torch
large = torch.randn(3000, 3000, device="cuda")
large = large @ large
values, positions = large.mode(1)
single = large.view(-1)[:5000].mode()
found = [list(values.shape), list(positions.shape), list(single.values.shape)]
print(json.dumps([found, positions.amax().item() < 3000, len(set(positions.tolist())) > 100]))
"""


def last_line(run: RunSimulated, program: str, *arguments: str, **activate: Any) -> Any:
    return json.loads(run(program, *arguments, **activate).stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "mode", ["eager", pytest.param("adversarial", marks=pytest.mark.long)], ids=str
)
def test_large_known_values_are_those_of_the_host(run_simulated: RunSimulated, mode: str) -> None:
    found = last_line(run_simulated, "sim_large_values.py", "300000", **MODES[mode])
    assert found == {"cases": 50, "wrong": [], "unknown": 0}


@pytest.mark.long
@pytest.mark.parametrize("case", ["sorts", "unique_draws"])
def test_thirty_million_known_values_are_those_of_the_host(
    run_simulated: RunSimulated, case: str
) -> None:
    found = last_line(run_simulated, "sim_large_values.py", "30000000", case)
    assert (found["wrong"], found["unknown"]) == ([], 0)


def test_only_what_is_read_is_computed(run_simulated: RunSimulated) -> None:
    found = last_line(run_simulated, "sim_lazy_values.py")
    assert (found["unread"], found["unread_left"]) == (0, [0, 0, 0])
    assert (found["read"], found["read_left"]) == ([3, 0, 0], [0, 0, 0])
    assert found["parts"] < 200_000
    # Too many additions waited, so the oldest ones were computed.
    assert found["waiting"] < 50_000
    assert found["chain"] == [120_000]
    assert found["overwritten"] == [30_000, 1]
    assert found["unknown"] == 0
    assert found["reads"] == ["aten::_local_scalar_dense"]


@pytest.mark.parametrize(
    ("mode", "seed"),
    [
        ("eager", 1),
        ("adversarial", 2),
        ("clock", 3),
        *(pytest.param("eager", seed, marks=pytest.mark.long) for seed in range(4, 12)),
        *(pytest.param("adversarial", seed, marks=pytest.mark.long) for seed in range(12, 16)),
    ],
)
def test_random_programs_have_the_host_s_values(
    run_simulated: RunSimulated, mode: str, seed: int
) -> None:
    found = last_line(run_simulated, "sim_random_values.py", str(seed), "400", **MODES[mode])
    assert found["computed"] > 0
    assert (found["wrong"], found["unknown"], found["left"]) == ([], 0, [0, 0, 0])


@pytest.mark.parametrize(
    ("mode", "seed"),
    [
        ("eager", 1),
        ("adversarial", 2),
        *(
            pytest.param(mode, seed, marks=pytest.mark.long)
            for mode in MODES
            for seed in range(3, 7)
        ),
    ],
)
def test_random_writes_with_gaps_have_the_host_s_values(
    run_simulated: RunSimulated, mode: str, seed: int
) -> None:
    found = last_line(run_simulated, "sim_random_gaps.py", str(seed), "300", **MODES[mode])
    assert found["computed"] > 0
    assert (found["wrong"], found["silent"], found["unsure"]) == ([], [], [])
    assert found["left"] == [0, 0, 0]


def test_the_largest_tensor_of_an_operator_is_limited(run_simulated: RunSimulated) -> None:
    assert last_line(run_simulated, MANY_ELEMENTS) == [[True, 0], [False, 1]]


def test_a_write_with_gaps_is_one_value(run_simulated: RunSimulated) -> None:
    lines = run_simulated(GAPS).stdout.splitlines()
    unread, total, (values, size), half, whole, unknown = json.loads(lines[0])
    assert (unread, total) == (0, 4 * 128 * 128 * 5)
    # That of the images, and the sum.
    assert values <= 2
    assert size < 1.1 * 4 * 128 * 128 * 3
    assert half == [3, 32 * 999 * 500, 0]
    assert (whole, unknown) == (32 * 999 * 500 + 32 * 1000, 0)
    # Only what is written is known.
    assert json.loads(lines[1]) == [3, 0, [], 1]


def test_millions_of_rows_need_no_marks(run_simulated: RunSimulated) -> None:
    sums, unknown, taken = last_line(run_simulated, MANY_ROWS)
    assert (sums, unknown) == ([1, 2, 3], [0, 1])
    assert taken < 100 << 20


def test_a_copy_of_a_written_column_holds_its_pages_only(run_simulated: RunSimulated) -> None:
    (held, copied), total, unknown = last_line(run_simulated, COPIED_COLUMN)
    assert copied < 3 * held < 3 * 3000 * 8192
    assert (total, unknown) == (2999 * 3000 / 2, 0)


def test_drawn_indices_are_used_consistently(run_simulated: RunSimulated) -> None:
    found = last_line(run_simulated, DRAWN)
    assert found["none"] == 0
    # Each row belongs to one expert.
    assert sum(found["counts"]) == 1000
    assert min(found["counts"]) > 100
    assert found["same"]


def test_modes_of_unknown_numbers_have_their_shapes(run_simulated: RunSimulated) -> None:
    shapes, valid, drawn = last_line(run_simulated, MODES_OF_UNKNOWN)
    assert (shapes, valid, drawn) == ([[3000], [3000], []], True, True)


def test_modes_have_their_shapes_without_values(run_simulated: RunSimulated) -> None:
    shapes, valid, _ = last_line(run_simulated, MODES_OF_UNKNOWN, values=False)
    assert (shapes, valid) == ([[3000], [3000], []], True)


@pytest.mark.parametrize("mode", ["eager", "adversarial"])
def test_a_graph_leaves_columns_known_beside_those_that_it_writes(
    run_simulated: RunSimulated, mode: str
) -> None:
    found = last_line(run_simulated, CAPTURED_COLUMNS, **MODES[mode])
    assert found == [[True] * 3 + [False] * 3] * 3


def test_random_numbers_of_a_graph_are_unknown(run_simulated: RunSimulated) -> None:
    assert last_line(run_simulated, CAPTURED) == 1
