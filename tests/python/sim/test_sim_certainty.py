"""The certainty of a verdict: sizes, branches and ends that depended on uncomputed values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferro_alloc.fit import _certainty, _runs
from ferro_alloc.fit._report import WITHOUT_VALUES
from tests.programs import Completed
from tests.python.commands import command
from tests.python.sim.conftest import Result, Simulate

MIB, GIB = 1 << 20, 1 << 30

# The results of large matrix products are never computed.
UNKNOWN = """\
import torch
weights = torch.randn(2048, 2048, device="cuda")
unknown = weights @ weights
"""
MASKS = f"""\
{UNKNOWN}
wide = torch.empty(2048, 1 << 18, dtype=torch.uint8, device="cuda")
picked = wide[unknown[:, 0] > 0]
print(len(picked))
"""
PLACE = "train.py:6"


def report_of(done: Completed) -> str:
    """What the command prints after the program's own output."""
    return done.stderr[done.stderr.index("\nsimulated ") :]


def learned(result: Result) -> dict[str, str]:
    return {read["place"]: read["learned"] for read in result["uncomputed"]}


def test_the_range_of_a_size_that_depends_on_unknown_values(simulate: Simulate) -> None:
    done, result = simulate(MASKS)
    assert done.returncode == 13, done.stderr
    assert done.stdout == "0\n"
    assert (result["verdict"], result["rows"]) == ("fits as far as known", "zeros")
    assert result["few_rows"] is None
    assert learned(result)[PLACE] == "size"
    most = result["all_rows"]
    assert (most["verdict"], most["rows"]) == ("fits as far as known", "all")
    peaks = [run["devices"][0]["peak_allocated_bytes"] for run in (result, most)]
    assert 512 * MIB <= peaks[1] - peaks[0] < 514 * MIB
    assert "FITS AS FAR AS KNOWN, with" in done.stderr
    assert f"{PLACE} (once): the size of a result, with as few rows as possible" in done.stderr
    spare = most["devices"][0]["spare_bytes"] / GIB
    assert f"  with as many rows as possible it FITS AS FAR AS KNOWN, with {spare:.2f} GiB" in (
        done.stderr
    )


def test_it_may_fit_only_with_few_rows(simulate: Simulate) -> None:
    done, result = simulate(MASKS, "--memory", "1640m")
    assert done.returncode == 13, done.stderr
    assert result["all_rows"]["verdict"] == "does not fit"
    said = "but with as many rows as possible it DOES NOT FIT AS FAR AS KNOWN: short by"
    assert said in done.stderr


@pytest.mark.parametrize(("rows", "count"), [("zeros", 0), ("none", 0), ("all", 2048)])
def test_one_assumption_can_be_chosen(simulate: Simulate, rows: str, count: int) -> None:
    done, result = simulate(MASKS, "--rows", rows)
    assert (done.returncode, done.stdout) == (13, f"{count}\n")
    assert (result["rows"], result["all_rows"], result["few_rows"]) == (rows, None, None)


SEQUENCES = f"""\
{UNKNOWN}
from torch.nn.functional import ctc_loss
weights.requires_grad_()
scores = (weights @ weights)[:80].view(80, 16, 128).log_softmax(-1)
labels, lengths = torch.randint(1, 128, (16, 30), device="cuda"), torch.full((16,), 20)
ctc_loss(scores, labels, torch.full((16,), 80), LENGTHS).backward()
"""


@pytest.mark.parametrize("lengths", ["lengths", "lengths.cuda()", "lengths.tolist()"])
def test_a_loss_of_sequences_follows_known_lengths(simulate: Simulate, lengths: str) -> None:
    program = SEQUENCES.replace("LENGTHS", lengths)
    if "list" in lengths:
        program = program.replace("torch.full((16,), 80)", "(80,) * 16")
    done, result = simulate(program)
    assert (done.returncode, result["uncomputed"]) == (0, []), done.stderr


def test_a_loss_of_sequences_reads_unknown_lengths(simulate: Simulate) -> None:
    program = SEQUENCES.replace("LENGTHS", "unknown[0, :16].long().clamp(1, 30)")
    done, result = simulate(program)
    assert (done.returncode, learned(result)) == (13, {"train.py:9": "integer"}), done.stderr


SAVED = f"""\
{UNKNOWN}
import io, pickle
picked = unknown.argmax(1)
torch.save({{"weights": unknown, "count": torch.ones(1, device="cuda")}}, io.BytesIO())
torch.serialization.save([picked, picked > 0], io.BytesIO())
pickle.dumps(unknown)
scaler = torch.amp.GradScaler()
scaler.scale(unknown.mean())
scaler._scale.mul_(unknown.mean())
scaler._growth_tracker.add_((unknown > 3).sum())
torch.save(dict(scaler=scaler.state_dict()), io.BytesIO())
"""


def test_saving_tensors_makes_no_verdict_unsure(simulate: Simulate) -> None:
    done, result = simulate(SAVED)
    assert (done.returncode, result["verdict"]) == (0, "fits"), done.stderr
    assert set(learned(result).values()) == {"float"}


# Indices of pooling, the seeds of attention, a chosen index and a mask are saved as integers.
OFFLOADED = f"""\
{UNKNOWN}
from torch.autograd.graph import save_on_cpu
from torch.nn.functional import max_pool1d, scaled_dot_product_attention
q = unknown.half().view(1, 16, -1, 64)[:, :, :256].clone().requires_grad_()
for pinned in (False, True):
    with save_on_cpu(pin_memory=pinned):
        y = scaled_dot_product_attention(q, q, q)
        y = y.gather(3, q.argmax(3, keepdim=True))
        loss = y.where(y > 0, -y).sum() + max_pool1d(q[0], 2).sum()
    loss.backward()
"""


def test_keeping_tensors_on_the_host_for_backward_makes_no_verdict_unsure(
    simulate: Simulate,
) -> None:
    done, result = simulate(OFFLOADED)
    assert (done.returncode, result["verdict"]) == (0, "fits"), done.stderr
    assert set(learned(result).values()) == {"float"}


OFFLOADED_AND_READ = f"""\
{UNKNOWN}
class Offload(torch.autograd.graph.save_on_cpu):
    def __init__(self):
        super().__init__()
        CHANGE
    def keep(self, tensor):
        kept = self.copy(tensor)
        if kept[1].dtype == torch.int64 and kept[1].sum() > 3: unknown.sum()
        return kept
q = unknown.clone().requires_grad_()
with Offload():
    loss = q.gather(1, q.argmax(1, keepdim=True)).sum()
loss.backward()
"""


@pytest.mark.parametrize(
    ("change", "status"),
    [("self.copy, self.pack_hook = self.pack_hook, self.keep", 13), ("pass", 0)],
)
def test_a_hook_that_reads_what_it_keeps_makes_the_verdict_unsure(
    simulate: Simulate, change: str, status: int
) -> None:
    done, _ = simulate(OFFLOADED_AND_READ.replace("CHANGE", change))
    assert done.returncode == status, done.stderr


SIZED = f"""\
{UNKNOWN}
column = unknown[:, 0]
found = [torch.unique(column), torch.unique(column > 0), torch.nonzero(column > 0)]
found += [torch.unique(unknown, dim=1), torch.unique_consecutive(column), column[~(column > 0)]]
print([tuple(each.shape) for each in found])
assert torch.unique(torch.arange(7, device="cuda") // 2).shape == (4,)
"""


@pytest.mark.parametrize(
    ("rows", "shapes"),
    [
        ("zeros", [(1,), (1,), (0, 1), (2048, 1), (1,), (2048,)]),
        ("none", [(1,), (1,), (0, 1), (2048, 1), (1,), (2048,)]),
        ("all", [(2048,), (2,), (2048, 1), (2048, 2048), (2048,), (0,)]),
        ("none-alone", [(1,), (1,), (0, 1), (2048, 1), (1,), (0,)]),
        ("all-alone", [(2048,), (2,), (2048, 1), (2048, 2048), (2048,), (2048,)]),
    ],
)
def test_assumed_sizes_of_operators(
    simulate: Simulate, rows: str, shapes: list[tuple[int, ...]]
) -> None:
    rows, _, alone = rows.partition("-")
    done, _ = simulate(SIZED, "--rows", rows, *(["--rows-alone"] if alone else []))
    assert done.stdout == f"{shapes}\n", done.stderr


BRANCHES = f"""\
{UNKNOWN}
if (unknown.sum() > 0).item():
    raise SystemExit(3)
"""
COUNTS = f"{UNKNOWN}\nprint('right', (unknown > 3).sum().item())"
EQUALS = f"{UNKNOWN}\nprint(torch.equal(unknown, weights))"
COPIES = f"{UNKNOWN}\nprint((unknown > 0).long().argmax(1).tolist()[:1])"


TURNED = f"{UNKNOWN}\nlengths = range(int(unknown.mean()))"
TRUTH = f"{UNKNOWN}\nassert not unknown.mean()"
HIDDEN = f"{UNKNOWN}\nexec('length = int(unknown.mean())')"
TRUTHS = f"{UNKNOWN}\nwhile (unknown > 3).any(): unknown -= 3"
LENGTHS = f"{UNKNOWN}\ncount = int((unknown > 3).sum())\nprint(torch.zeros(count).shape)"


@pytest.mark.parametrize(
    ("program", "reached"),
    [
        (BRANCHES, "the condition at train.py:5"),
        (EQUALS, ""),
        (TURNED, "the conversion to an integer at train.py:5"),
        (TRUTH, "the condition at train.py:5"),
        (HIDDEN, "a conversion to an integer or a condition in the same line"),
        (TRUTHS, "the condition at train.py:5"),
        (LENGTHS, "the size at train.py:6"),
    ],
)
def test_integers_and_booleans_qualify_a_verdict(
    simulate: Simulate, program: str, reached: str
) -> None:
    done, result = simulate(program, "--rows", "zeros")
    assert done.returncode == 13, done.stderr
    assert result["verdict"] == "fits as far as known"
    assert learned(result) == {"train.py:5": "integer"}
    assert result["all_rows"] is None
    assert "train.py:5 (once): a number or a boolean, computed from zeros" in done.stderr
    (read,) = result["uncomputed"]
    assert read["reached"] == reached
    assert _certainty.OTHERWISE in done.stderr
    assert report_of(done).count("train.py:5 (") == 1


@pytest.mark.parametrize("program", [COUNTS, COPIES])
def test_integers_that_are_only_shown_qualify_no_verdict(simulate: Simulate, program: str) -> None:
    done, result = simulate(program)
    assert (done.returncode, result["verdict"]) == (0, "fits"), done.stderr
    assert learned(result) == {"train.py:5": "float"}
    assert (
        "  numbers that seem to decide nothing were not computed, but assumed as zeros: "
        "train.py:5 (once)\n"
    ) in report_of(done)


PRINTS = f"""\
{UNKNOWN}
print(unknown.mean(), (unknown > 0).sum(), unknown)
text = f"{{(unknown > 0).sum()}} {{unknown.mean():.3f}} {{unknown.mean().item()}}"
"""


def test_what_is_only_printed_does_not(simulate: Simulate) -> None:
    done, result = simulate(PRINTS)
    assert done.returncode == 0, done.stderr
    assert learned(result) == {"train.py:5": "float", "train.py:6": "float"}


@pytest.mark.parametrize("folder", ["torch", "ferro_alloc"])
def test_the_place_of_a_program_in_a_folder_of_that_name(tmp_path: Path, folder: str) -> None:
    script = tmp_path / folder / "train.py"
    script.parent.mkdir()
    script.write_text(COUNTS)
    done = command("simulate", str(script))
    assert "train.py:5 reads values that the simulated GPU did not compute" in done.stderr


MANY_PLACES = f"""\
{UNKNOWN}
column = unknown[:, 0]
for line in range(1100):
    exec(compile(f"\\ncolumn[{{line}}].item()", f"{{line}}.py", "exec"))
picked = column[column > 0]
again = column[column < 0]
"""


def test_reads_count_beyond_a_thousand_places(simulate: Simulate) -> None:
    done, result = simulate(MANY_PLACES, "--rows", "none")
    assert done.returncode == 13, done.stderr
    assert len(result["uncomputed"]) < 1010
    others = {
        read["operator"]: (read["learned"], read["count"])
        for read in result["uncomputed"]
        if read["place"] == "other places"
    }
    assert others == {"aten::nonzero": ("size", 2), "aten::_local_scalar_dense": ("float", 100)}


ROUTES = """\
import torch
tokens = torch.randn(4096, 65536, dtype=torch.bfloat16, device="cuda")
logits = tokens @ torch.randn(65536, 8, dtype=torch.bfloat16, device="cuda")
experts = logits.topk(2, -1).indices
sizes = []
for expert in range(8):
    rows = (experts == expert).nonzero()[:, 0]
    sizes.append(len(tokens[rows]))
print(sum(sizes), min(sizes) > 900, max(sizes) > 1024, max(sizes) < 1150)
"""
CHOICE = (
    "what follows from choices (argmax, topk, multinomial) or numbers (poisson), drawn at random"
)
DRAWN = (
    "choices were drawn at random, each class equally likely, or numbers that a card draws "
    "differently: train.py"
)


def test_the_rows_of_experts_are_those_of_a_draw(simulate: Simulate) -> None:
    done, result = simulate(ROUTES)
    assert (done.returncode, done.stdout) == (13, "8192 True True True\n"), done.stderr
    assert result["verdict"] == "fits as far as known"
    assert learned(result) == {"train.py:7": "drawn"}
    assert result["all_rows"] is None
    # The tokens, and those of an expert: nearly a quarter of them.
    assert 640 * MIB < result["devices"][0]["peak_allocated_bytes"] < 820 * MIB
    assert f"train.py:7 (8 times): {CHOICE}" in done.stderr
    assert "as few rows" not in done.stderr
    assert any(line.startswith(DRAWN) for line in result["not_simulated"])


RANDOM = """\
import torch
numbers = {numbers}
rows = torch.zeros(4096, 65536, dtype=torch.int8, device="cuda")[numbers > 1]
print(len(rows))
"""
WEIGHTS = "torch.ones(4096, 64, device='cuda')"


@pytest.mark.parametrize(
    ("numbers", "certain"),
    [
        ("torch.poisson(torch.ones(4096, device='cuda'))", False),
        ("torch._standard_gamma(torch.ones(4096, device='cuda'))", False),
        ("torch.multinomial(torch.ones(64, device='cuda').half(), 4096, True)", False),
        (f"torch.multinomial({WEIGHTS}.double(), 2, True)[:, 1]", True),
        (f"torch.nn.functional.dropout({WEIGHTS}[:, 5], 0.5)", True),
        (f"torch.nn.functional.rrelu({WEIGHTS}[:, 5].neg(), training=True).add(1.2)", True),
    ],
)
def test_random_numbers_that_are_not_a_cards_make_a_verdict_unsure(
    simulate: Simulate, numbers: str, certain: bool
) -> None:
    done, result = simulate(RANDOM.format(numbers=numbers))
    assert 0 < int(done.stdout) < 4096, done.stderr
    if certain:
        assert (done.returncode, result["verdict"], learned(result)) == (0, "fits", {})
    else:
        assert (done.returncode, result["verdict"]) == (13, "fits as far as known")
        assert learned(result) == {"train.py:3": "drawn"}
        assert f"train.py:3 (once): {CHOICE}" in done.stderr


ROUTES_AND_MASKS = f"""\
{ROUTES}
first = experts[:, 0] == 0
found = len(tokens[first & (logits[:, 0] > 0)])
print(found, int(first.sum()))
"""


@pytest.mark.parametrize("rows", ["zeros", "none", "all"])
def test_unknown_values_beside_drawn_choices(simulate: Simulate, rows: str) -> None:
    done, result = simulate(ROUTES_AND_MASKS, "--rows", rows)
    routes, masked = done.stdout.splitlines()
    assert routes == "8192 True True True", done.stderr
    found, first = map(int, masked.split())
    assert 400 < first < 620
    assert found == (first if rows == "all" else 0)
    # The last one is only printed.
    assert learned(result) == {"train.py:7": "drawn", "train.py:12": "size", "train.py:13": "float"}
    assert f"train.py:7 (8 times): {CHOICE}" in done.stderr
    amount = "the rows of zeros" if rows == "all" else "as few rows as possible"
    assert f"train.py:12 (once): the size of a result, with {amount}" in done.stderr


@pytest.mark.parametrize(
    "read",
    [
        "(unknown.argmax(1) == 3).sum().item()",
        "unknown.argmax(1).tolist()",
        "unknown.argmax().cpu()",
    ],
)
def test_reads_of_drawn_choices_qualify_a_verdict(simulate: Simulate, read: str) -> None:
    done, result = simulate(f"{UNKNOWN}\nid({read})")
    assert done.returncode == 13, done.stderr
    assert learned(result) == {"train.py:5": "drawn"}
    assert "train.py:5 reads values that follow from choices or numbers that the simulated" in (
        done.stderr
    )
    assert f"train.py:5 (once): {CHOICE}" in done.stderr


@pytest.mark.parametrize(
    "read", ["unknown.argmax(1).tolist()[0]", "(unknown.argmax(1).cpu() == 3).float().mean()"]
)
def test_drawn_choices_that_are_only_shown_qualify_no_verdict(
    simulate: Simulate, read: str
) -> None:
    done, result = simulate(f"{UNKNOWN}\nprint({read})")
    assert (done.returncode, result["verdict"]) == (0, "fits"), done.stderr
    assert learned(result) == {"train.py:5": "float"}


PRINTS_A_LOSS = """\
import torch
model = torch.nn.Linear(2048, 2048, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    loss = model(torch.randn(2048, 2048, device="cuda")).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item(), loss.cpu(), loss.detach().cpu().numpy())
"""


def test_a_printed_loss_does_not_qualify_it(simulate: Simulate) -> None:
    done, result = simulate(PRINTS_A_LOSS)
    assert (done.returncode, result["verdict"]) == (0, "fits"), done.stderr
    assert learned(result) == {"train.py:10": "float"}
    assert "numbers that seem to decide nothing were not computed, but assumed" in done.stderr
    assert _certainty.OTHERWISE not in done.stderr


CHECKS_A_LOSS = f"""\
{UNKNOWN}
loss = unknown.mean().log()
if torch.isnan(loss) or torch.isinf(loss) or not torch.isfinite(loss):
    raise SystemExit(3)
"""


def test_unknown_numbers_are_assumed_to_be_finite(simulate: Simulate) -> None:
    done, result = simulate(CHECKS_A_LOSS)
    assert (done.returncode, result["verdict"]) == (0, "fits"), done.stderr
    assert result["uncomputed"] == []


QUOTIENTS = f"""\
{UNKNOWN}
import math
loss = unknown.square().mean()
mask = unknown > 0.5
rows = mask.float().sum()
divided = loss.clone().div_(loss)
lists = torch._foreach_div([loss, loss * 2], [loss, loss])
torch.div(loss, loss, out=(out := torch.empty_like(loss)))
read = [(loss / loss).item(), float(loss.log()), loss.rsqrt().tolist(), (1 / loss).cpu().item()]
read += [((unknown * mask).sum() / rows).item(), (mask.float() / rows).mean().item()]
read += [divided.item(), out.item(), *(each.item() for each in lists)]
read += [(loss.half() / loss.half()).item(), (loss / loss).bfloat16().item()]
for number in read:
    if not math.isfinite(number):
        raise SystemExit(3)
zeros = torch.zeros(2, device="cuda")
print("known", (zeros / zeros).tolist(), (1 / zeros).tolist())
masked = unknown[0, :3].masked_fill(torch.tensor([False, True, False], device="cuda"), -math.inf)
print("masked", masked.tolist(), torch.full((1,), math.inf, device="cuda").add(loss).tolist())
"""


def test_quotients_of_unknown_numbers_are_finite_where_the_program_reads_them(
    simulate: Simulate,
) -> None:
    done, result = simulate(QUOTIENTS)
    assert (done.returncode, result["verdict"]) == (0, "fits"), done.stderr
    assert "known [nan, nan] [inf, inf]" in done.stdout
    assert "masked [0.0, -inf, 0.0] [inf]" in done.stdout


ENDS = [
    (f"{UNKNOWN}\nassert unknown.sum().item() != 0, 'nothing'", 5, "AssertionError: nothing"),
    (f"{UNKNOWN}\nunknown[unknown[0] > 0].max()", 5, "RuntimeError: max()"),
    (f"{UNKNOWN}\nif not (unknown > 0).any():\n    exit('nothing')", 5, "SystemExit: nothing"),
    (f"{UNKNOWN}\nif not (unknown > 0).any():\n    exit('No rows.')", 5, "SystemExit: No rows."),
]


@pytest.mark.parametrize(("program", "line", "error"), ENDS)
def test_a_program_that_such_a_value_ends(
    simulate: Simulate, program: str, line: int, error: str
) -> None:
    done, result = simulate(program, "--rows", "none")
    assert done.returncode == 14, done.stderr
    assert (result["verdict"], result["program_status"]) == ("unknown", 1)
    assert result["ended_by"] == f"train.py:{line}"
    assert result["error"].startswith(error)
    assert f"it ended with {error}" in done.stderr
    assert ".. If that comes from" not in done.stderr
    assert f"does not compute (the last was read at train.py:{line}), it may not " in done.stderr


def test_a_comparison_says_the_same_of_its_end(simulate: Simulate) -> None:
    program, line, error = ENDS[0]
    done, result = simulate(program, "--rows", "none", "--compare")
    assert (done.returncode, result["exit_status"]) == (14, 14), done.stderr
    rows = [each for each in done.stderr.splitlines() if "failed, status 14 " in each]
    assert len(rows) == 3, done.stderr
    assert all(row.endswith(" to spare until then") for row in rows)
    end = f"it ended with {error}. If that comes from a value that the simulated GPU does not"
    assert done.stderr.count(end) == 1
    # Each place is named once.
    assert done.stderr.count(f"train.py:{line} (once)") == 1


def test_a_search_says_the_same_of_its_end(simulate: Simulate) -> None:
    program, line, error = ENDS[0]
    options = ("--rows", "none", "--what-if", "batch=1..8")
    done, result = simulate(program, *options, arguments=("--batch", "4"))
    assert (done.returncode, result["exit_status"]) == (14, 14), done.stderr
    assert "  failed, status 14 " in done.stderr
    assert f"it ended with {error}. If that comes from a value that the simulated" in done.stderr
    assert f"(the last was read at train.py:{line})" in done.stderr


def test_a_status_without_such_values_is_the_programs(simulate: Simulate) -> None:
    done, result = simulate(f"{UNKNOWN}\nexit(3)")
    assert done.returncode == 3
    assert (result["ended_by"], result["error"]) == ("", "SystemExit: 3")
    assert "it ended with status 3" in done.stderr


def test_an_error_without_such_values_is_the_programs(simulate: Simulate) -> None:
    done, result = simulate(f"{UNKNOWN}\nraise ValueError('wrong')")
    assert done.returncode == 1
    assert (result["ended_by"], result["error"]) == ("", "ValueError: wrong")
    assert "it ended with status 1" in done.stderr


COMPILED_MASK = """\
import torch
numbers = torch.arange(1 << 20, device="cuda")
find = torch.compile(lambda numbers: numbers % 7 == 0)
find(numbers)
known = [torch.ones(1 << 20, dtype=torch.bool, device="cuda") for _ in range(9)]
del known
mask = find(numbers)
print(len(torch.empty(1 << 20, device="cuda")[mask]))
"""


@pytest.mark.long
def test_what_a_compiled_program_computes_in_reused_memory_is_unknown(simulate: Simulate) -> None:
    done, result = simulate(COMPILED_MASK, "--rows", "none")
    assert (done.returncode, done.stdout) == (13, "0\n"), done.stderr
    assert learned(result) == {"train.py:8": "size"}


IN_PLACE = """\
import torch
count = torch.zeros(1 << 10, dtype=torch.long, device="cuda")
def add(count):
    count.add_(1)
{launch}
print(len(range(count.sum().item())))
"""
COMPILED_ADD = "torch.compile(add)(count)"
CAPTURED_ADD = """\
add = torch.compile(add)
add(count.clone())
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    add(count)
count.zero_()
graph.replay()
"""


@pytest.mark.long
@pytest.mark.parametrize(("launch", "line"), [(COMPILED_ADD, 6), (CAPTURED_ADD, 13)])
def test_what_a_compiled_program_writes_in_place_is_unknown(
    simulate: Simulate, launch: str, line: int
) -> None:
    done, result = simulate(IN_PLACE.format(launch=launch))
    assert (done.returncode, done.stdout) == (13, "0\n"), done.stderr
    assert learned(result) == {f"train.py:{line}": "integer"}


COMPILED_CHOICES = """\
import torch
choose = torch.compile(lambda numbers: numbers * 2)
weights = torch.randn(2048, 2048, device="cuda")
unknown = weights @ weights
first, again, other = (choose(numbers).argmax(1) for numbers in (unknown, unknown, unknown + 1))
print(*["True" if same.all() else "False" for same in (first == again, first == other)])
"""


@pytest.mark.long
def test_compiled_programs_choose_by_what_they_read(simulate: Simulate) -> None:
    done, _ = simulate(COMPILED_CHOICES)
    assert (done.returncode, done.stdout) == (13, "True False\n"), done.stderr


TRITON = """\
import torch
import triton
import triton.language as tl
{decorator}
@triton.jit
def add_one(source, target, {more}count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < count) + 1, mask=at < count)
source, target = (torch.ones(1000, dtype=torch.long, device="cuda") for _ in range(2))
{launch}
print(len(range(source.sum().item())))
print(len(range(target.sum().item())))
"""
LAUNCH = "add_one[(1,)](source, target, {more}1000, {block})"
COMPILED_LAUNCH = f"""\
@torch.compile
def run(source, target):
    {LAUNCH.format(more="", block="BLOCK=1024")}
run(source, target)
"""
TUNED = (
    "@triton.autotune([triton.Config({'BLOCK': 512}), triton.Config({'BLOCK': 1024})], ['count'])"
)


@pytest.mark.parametrize(
    ("decorator", "launch"),
    [
        ("", LAUNCH.format(more="", block="BLOCK=1024")),
        pytest.param(TUNED, LAUNCH.format(more="", block=""), marks=pytest.mark.long),
        pytest.param("", COMPILED_LAUNCH, marks=pytest.mark.long),
    ],
)
def test_what_a_triton_kernel_writes_is_unknown(
    simulate: Simulate, decorator: str, launch: str
) -> None:
    program = TRITON.format(decorator=decorator, more="", launch=launch)
    done, result = simulate(program)
    assert done.returncode == 13, done.stderr
    assert done.stdout.startswith("1000\n")
    last = len(program.splitlines())
    assert learned(result) == {f"train.py:{last}": "integer"}


def test_what_a_triton_kernel_writes_to_unset_memory_is_zeros(simulate: Simulate) -> None:
    again = "del target\ntarget = torch.empty(1000, dtype=torch.long, device='cuda')"
    launch = f"{again}\n{LAUNCH.format(more='', block='BLOCK=1024')}"
    done, _ = simulate(TRITON.format(decorator="", more="", launch=launch))
    assert done.stdout == "1000\n0\n", done.stderr


def test_all_arguments_of_an_unusual_triton_kernel_are_unknown(simulate: Simulate) -> None:
    launch = LAUNCH.format(more="(source, target), ", block="BLOCK=1024")
    program = TRITON.format(decorator="", more="both, ", launch=launch)
    done, result = simulate(program)
    assert (done.returncode, done.stdout) == (13, "1000\n1000\n"), done.stderr
    last = len(program.splitlines())
    assert learned(result) == {f"train.py:{line}": "integer" for line in (last - 1, last)}


def test_a_run_without_values_records_no_reads(simulate: Simulate) -> None:
    done, result = simulate(MASKS, "--no-values")
    assert done.returncode == 13
    assert (result["verdict"], result["values"]) == ("fits as far as known", False)
    assert "no values were computed (--no-values, " in done.stderr
    assert "the program read zeros, or what other tensors had left in the memory" in done.stderr
    assert _certainty.OTHERWISE in done.stderr


CAPTURABLE = """\
import torch
weight = torch.ones(9, device="cuda", requires_grad=True)
rate = torch.tensor(1e-3, device="cuda")
torch.optim.Adam([weight], lr=rate, capturable=True)
"""


@pytest.mark.parametrize("option", ["--no-values", "--no-backing", "--mode=adversarial"])
def test_an_error_without_values_says_what_to_do(simulate: Simulate, option: str) -> None:
    """It may come from a check of a number that was not computed."""
    program = CAPTURABLE + "if rate < 1e-4: raise ValueError('too small')\n"
    done, result = simulate(program, option)
    assert (done.returncode, result["verdict"]) == (1, "unknown")
    assert f"(ValueError at train.py:4). {WITHOUT_VALUES}\n" in done.stderr
    assert WITHOUT_VALUES in "\n".join(_runs.comparison({"runs": [result], "partial": ""}))


def test_an_end_with_values_or_by_a_status_says_nothing_of_values(simulate: Simulate) -> None:
    for program, options in (("1 / 0", ()), ("raise SystemExit(3)", ("--no-values",))):
        done, _ = simulate(f"import torch\nx = torch.ones(9, device='cuda')\n{program}", *options)
        assert done.returncode in (1, 3)
        assert "leave out --no-values" not in done.stderr


def run_of(verdict: str, *, learned: str = "float", most: Result | None = None) -> Result:
    fits = verdict.startswith("fits")
    return {
        "verdict": verdict,
        "allocator": "native",
        "card": {"name": "H", "memory_bytes": 8 * GIB, "own_memory": False},
        "values": True,
        "rows": "none",
        "partial": "",
        "exit_status": {"fits": 0, "fits as far as known": 13}.get(verdict, 12),
        "program_status": 0,
        "ended_ranks": [],
        "uncomputed": [
            {
                "place": "a.py:1",
                "operator": "f",
                "learned": learned,
                "count": 2,
                "reached": "",
                "rows": "fewest" if learned == "size" else "",
            }
        ],
        "out_of_memory": None if fits else {"requested_bytes": GIB, "device_free_bytes": 0},
        "all_rows": most,
        "few_rows": None,
        "refused": [],
        "cudnn_benchmark": False,
        "derived_workspaces": 0,
        "ended_by": "",
        "not_simulated": [],
        "error": "",
        "sure": verdict == "fits" or (verdict == "does not fit" and learned == "size"),
        "tight": False,
        "gpu_used": True,
        "lost_runs": [],
        "devices": [
            {
                **dict.fromkeys(("peak_in_use_bytes", "peak_reserved_bytes"), GIB),
                **dict.fromkeys(("peak_allocated_bytes", "allocated_bytes"), GIB),
                "spare_bytes": 7 * GIB,
                "allocations": 3,
            }
        ],
    }


def test_a_comparison_reports_its_certainty(monkeypatch: pytest.MonkeyPatch) -> None:
    most = run_of("does not fit", learned="size")
    unsure = run_of("fits as far as known", learned="size", most=most)
    monkeypatch.setattr(_runs.Child, "run", lambda *words, **named: unsure)
    compared = _runs.compare(_runs.Child([], []), GIB)
    assert compared["exit_status"] == 13
    text = "\n".join(_runs.comparison(compared))
    assert "it fits as far as known under native, native, native" in text
    assert "does not fit, 1.00 GiB in use" in text
    assert "a.py:1 (2 times): the size of a result, with as few rows as possible" in text
    assert "none of them" not in text


def test_a_comparison_of_unended_programs_says_nothing_of_their_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = {**run_of("fits"), "verdict": "unknown", "partial": "time limit", "exit_status": 124}
    monkeypatch.setattr(_runs.Child, "run", lambda *words, **named: ended)
    text = "\n".join(_runs.comparison(_runs.compare(_runs.Child([], []), GIB)))
    assert "it did not run to its end under native, native, native" in text
    assert "the time limit ended the program under native, native, native: this report is" in text
    assert "none of them" not in text


def test_a_comparison_names_drawn_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    unsure = run_of("fits as far as known", learned="drawn")
    monkeypatch.setattr(_runs.Child, "run", lambda *words, **named: unsure)
    compared = _runs.compare(_runs.Child([], []), GIB)
    assert compared["exit_status"] == 13
    text = "\n".join(_runs.comparison(compared))
    assert f"a.py:1 (2 times): {CHOICE}" in text
    assert "with all rows" not in text


def test_the_largest_value_must_fit_with_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: _runs.Child, *words: str, **options: Any) -> Result:
        assert words == ("--no-few-rows",)
        value = int(self.program[-1])
        most = run_of("does not fit" if value > 5 else "fits as far as known", learned="size")
        return run_of("fits as far as known", learned="size", most=most)

    monkeypatch.setattr(_runs.Child, "run", run)
    question = _runs.Question("batch", 1, 64)
    answer = _runs.what_if(_runs.Child([], ["train.py", "--batch", "4"]), question)
    assert (answer["largest"], answer["exit_status"]) == (5, 13)
    text = "\n".join(_runs.answer_of(question, answer))
    assert "the largest --batch that fits as far as known is 5" in text
    assert "does not fit with all rows" in text


def test_running_out_is_certain_only_with_the_smallest_sizes() -> None:
    result = run_of("does not fit", learned="size")
    assert _certainty.lacks_surely(result)
    for rows in ("most", "zeros", ""):
        (read,) = result["uncomputed"]
        assert not _certainty.lacks_surely({**result, "uncomputed": [{**read, "rows": rows}]})
    for learned in ("integer", "drawn"):
        assert not _certainty.lacks_surely(run_of("does not fit", learned=learned))


def test_the_second_run_has_the_programs_first_surroundings(
    simulate: Simulate, tmp_path: Path
) -> None:
    moves = f"import os\nos.chdir('/')\nos.environ['FERRO_MOVED'] = '1'\n{MASKS}"
    done, result = simulate(f"import os\nassert 'FERRO_MOVED' not in os.environ\n{moves}")
    assert done.returncode == 13, done.stderr
    assert result["all_rows"]["program_status"] == 0


STOPS_EARLY = f"""\
{UNKNOWN}
class Stopper:
    def __init__(self):
        self.best, self.bad = 9.0, 0
    def step(self, loss):
        if loss < self.best:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
        return self.bad > 2
stopper = Stopper()
for epoch in range(20):
    loss = unknown.mean().item()
    print(epoch, loss, flush=True)
    if stopper.step(loss): break
"""


def test_a_number_that_ends_a_loop_is_named_with_its_condition(simulate: Simulate) -> None:
    done, result = simulate(STOPS_EARLY)
    assert done.returncode == 13, done.stderr
    assert len(done.stdout.splitlines()) == 4
    (read,) = result["uncomputed"]
    assert (read["place"], read["reached"]) == ("train.py:16", "the condition at train.py:9")
    assert (read["learned"], read["drawn"]) == ("float", False)
    report = report_of(done)
    assert (
        "  the program depended on values that the simulated GPU does not compute, and that were "
        "assumed:\n"
        "    train.py:16 (4 times): a number or a boolean, computed from zeros; it reached the "
        "condition at train.py:9\n"
        f"  {_certainty.OTHERWISE}\n"
    ) in report
    assert report.count("train.py:16 (") == 1


TWICE_IN_A_LINE = f"""\
{UNKNOWN}
for _ in range(2):
    print(unknown.sum().item(), (unknown > 3).sum().item(), len(weights[unknown[:, 0] > 0]))
    print(unknown.sum().item())
    print(id(unknown.argmax().item()), unknown.sum().item())
"""


def test_a_line_is_named_once_under_its_strongest_label(simulate: Simulate) -> None:
    done, result = simulate(TWICE_IN_A_LINE, "--rows", "none")
    assert done.returncode == 13, done.stderr
    report = report_of(done)
    assert [line for line in report.splitlines() if "train.py:" in line and " time" in line] == [
        "    train.py:6 (2 times): the size of a result, with as few rows as possible",
        f"    train.py:8 (4 times): {CHOICE}",
        "  numbers that seem to decide nothing were not computed, but assumed as zeros: "
        "train.py:7 (2 times)",
    ]
    # So does the list of the interface.
    assert [
        sum(f"train.py:{n} " in line for line in result["not_simulated"]) for n in (6, 7, 8)
    ] == [
        1,
        1,
        1,
    ]


SHOWS_DRAWN = f"""\
{UNKNOWN}
right = (unknown.argmax(1) == torch.arange(2048, device="cuda")).float()
for step in range(2):
    print(right.sum().item(), right.mean().item())
print(unknown.mean().item())
print(right.mean())
"""


def test_numbers_that_follow_from_choices_are_no_zeros(simulate: Simulate) -> None:
    done, result = simulate(SHOWS_DRAWN)
    assert (done.returncode, result["verdict"]) == (0, "fits"), done.stderr
    known = {(read["place"], read["learned"], read["drawn"]) for read in result["uncomputed"]}
    assert known == {
        ("train.py:7", "float", True),
        ("train.py:8", "float", False),
        ("train.py:9", "float", True),
    }
    assert (
        "train.py:7 reads values that follow from choices or numbers that the simulated GPU drew"
        in (done.stderr)
    )
    of_draws, of_zeros = (line for line in result["not_simulated"] if "numbers" in line)
    assert of_draws.startswith(
        "numbers that seem to decide nothing follow from choices or numbers drawn at random: "
        "train.py:7 (4 times), train.py:9 ("
    )
    assert of_zeros == (
        "numbers that seem to decide nothing were not computed, but assumed as zeros: train.py:8 "
        "(once)"
    )


DRAWN_BRANCH = """\
counts = torch.bincount(unknown.argmax(1), minlength=2048).float()
balance = (counts.std() / counts.mean()).item()
if balance > 3: unknown.sum()
"""


def test_a_number_that_follows_from_choices_names_its_condition(simulate: Simulate) -> None:
    done, result = simulate(f"{UNKNOWN}\n{DRAWN_BRANCH}")
    assert learned(result)["train.py:6"] == "drawn", done.stderr
    said = f"train.py:6 (once): {CHOICE}; it reached the condition at train.py:7\n"
    assert said in done.stderr


CONFUSION = f"""\
{UNKNOWN}
guesses = unknown[:ROWS, :16].argmax(1)
labels = torch.arange(ROWS, device="cuda") % 16
confusion = torch.bincount(labels * 16 + guesses, minlength=LENGTH)
print(confusion.tolist())
"""


@pytest.mark.parametrize(
    ("rows", "length", "is_sure"),
    [(2048, 256, True), (2048, 250, False), (2048, 0, False), (64, 256, False)],
)
def test_counts_of_drawn_classes_have_the_least_length(
    simulate: Simulate, rows: int, length: int, is_sure: bool
) -> None:
    program = CONFUSION.replace("ROWS", str(rows)).replace("LENGTH", str(length))
    done, result = simulate(program)
    assert done.returncode == (0 if is_sure else 13), done.stderr
    wanted = {"train.py:8": "float"} if is_sure else {"train.py:7": "drawn"}
    assert learned(result).items() >= wanted.items()


def test_counts_of_places_within_drawn_classes_have_no_known_length(simulate: Simulate) -> None:
    program = CONFUSION.replace("ROWS", "2048").replace("labels * 16 + guesses", "place")
    places = (
        "chosen = torch.nn.functional.one_hot(guesses)\nplace = (chosen.cumsum(0) * chosen).sum(1)"
    )
    program = program.replace('labels = torch.arange(2048, device="cuda") % 16', places)
    done, result = simulate(program.replace("LENGTH", "250"))
    assert done.returncode == 13, done.stderr
    assert learned(result)["train.py:8"] == "drawn"


@pytest.mark.parametrize(
    ("learned", "said"), [("size", ""), ("integer", _certainty.OR_FITS), ("float", "")]
)
def test_what_is_unsure_of_a_program_that_ran_out(learned: str, said: str) -> None:
    text = "\n".join(_certainty.lines_of(run_of("does not fit", learned=learned)))
    assert _certainty.OTHERWISE not in text
    assert text.endswith(said)
    assert (_certainty.OR_FITS in text) == bool(said)


def test_the_request_that_failed_follows_the_verdict(simulate: Simulate) -> None:
    program = f"{UNKNOWN}\nif unknown.mean().item() < 3: torch.empty(1 << 34, device='cuda')"
    done, _ = simulate(program, "--memory", "2g")
    lines = report_of(done).splitlines()[2:]
    assert [line.split()[0] for line in lines[:2]] == ["DOES", "asked"], done.stderr
    assert lines[2].startswith("  the program depended on values")


def test_many_places_are_counted() -> None:
    result = run_of("fits as far as known")
    reads = [
        {**result["uncomputed"][0], "place": f"a.py:{n}", "learned": "drawn"} for n in range(11)
    ]
    lines = _certainty.lines_of({**result, "uncomputed": reads})
    assert lines[1:-2] == [f"    a.py:{n} (2 times): {CHOICE}" for n in range(8)]
    assert lines[-2] == "    and at 3 more lines"


def test_a_traceback_begins_in_the_program(simulate: Simulate) -> None:
    done, _ = simulate(f"{UNKNOWN}\ndef fail():\n    raise ValueError('wrong')\nfail()")
    said = done.stderr[: done.stderr.index("ValueError: wrong")].splitlines()
    assert said[0] == "Traceback (most recent call last):"
    assert [line.split(", ", 1)[1] for line in said if "File " in line] == [
        "line 7, in <module>",
        "line 6, in fail",
    ]
