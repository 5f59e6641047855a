"""Seeded programs, executed as late as streams and events allow: every byte must be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.python.probes import build_faulty_driver
from tests.python.random_programs import seeded
from tests.python.torch_programs import Result

EXTRAS = ("history", "own_pools", "sharing", "uncached")
RARE = ("checkpoints", "clones", "peers", "raw", "resets", "scalars", "snapshots")
OBSERVED = ("limits", "metadata")
LONG = pytest.mark.long
IN_OTHERS = ("in_turns", "at_once", "classic_layout")
"""These are long, and other programs with more extras do the same operations."""
STREAMS = 4
"""Streams of each device."""
FAULTS = {
    "reuse_before_event": 4,
    "missing_wait": 4,
    "missing_stream_wait": 4,
    "early_unmap": 4,
    "lost_page": 2,
    "mixed_up_move": 4,
    "wrong_stream": 4,
    "unseen_capture": 4,
    "missing_unmap": 2,
}
"""Planted faults, and the most programs that may be needed to find each."""
GROUP_FAULTS = {"result_on_scratch": 6, "scratch_twice": 6}
"""The same for faults of exclusive groups."""
LATE_FAULTS = {"own_stream_point": 4, "early_context_point": 4}
"""The same for faults in points of the whole context, which programs with late waits find."""


def assert_clean(result: Result, operations: int) -> None:
    assert result["errors"] == []
    assert (result["wrong_reads"], result["wrong_bytes"]) == (0, 0)
    assert result["operations"] > operations
    assert result["bytes_checked"] > 10_000 * operations
    assert result["allocated_at_end"] == result["reserved_at_end"] == result["free_lost"] == 0


KINDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "in_turns": (1000, ()),
    "short_of_memory": (
        2000,
        ("--memory", "160MiB", "--turn", "0.003", "--without", "empty_cache"),
    ),
    "at_once": (3000, ("--at-once", "--threads", "3", "--memory", "4GiB")),
    "without_graphs": (4000, ("--threads", "4", "--without", "graphs", "mempools")),
    "switched_and_observed": (5000, ("--extras", "switches", *EXTRAS)),
    "classic_layout": (6000, ("--allocator", "segments", "--extras", *EXTRAS)),
    "every_call": (7000, ("--extras", *EXTRAS, *RARE, *OBSERVED)),
    "every_call_classic": (
        8000,
        ("--allocator", "segments", "--extras", *EXTRAS, *RARE, *OBSERVED),
    ),
    "rare_calls_at_once": (
        9000,
        ("--at-once", "--threads", "3", "--memory", "4GiB", "--extras", "metadata", *RARE),
    ),
}
"""The first seed, which is the same for one and for several programs, and arguments."""


@pytest.mark.parametrize(
    ("programs", "kind"),
    [
        *((1, kind) for kind in KINDS if kind not in IN_OTHERS),
        *(pytest.param(5, kind, marks=LONG) for kind in KINDS),
    ],
)
def test_every_byte_is_right(programs: int, kind: str) -> None:
    seed, words = KINDS[kind]
    result = seeded("--seed", str(seed), "--programs", str(programs), *words)
    assert_clean(result, 2_000 * programs)
    devices = 2 if "peers" in words else 1
    assert words or result["report"]["ladder"]["passed_pages"] > 0
    streams = [] if "graphs" in words else list(range(devices * STREAMS))
    used = result["captured_on"], result["replayed_on"]
    assert used == (streams, streams) if programs > 2 else set().union(*used) <= set(streams)
    assert (result["replays_of_scalars"] > 5 * programs) == ("scalars" in words)


@pytest.mark.parametrize("programs", [2, pytest.param(4, marks=LONG)])
def test_requests_that_wait_for_memory_get_it_in_order(programs: int) -> None:
    """Memory is hardly larger than the live bytes, so pages pass between streams, which wait for
    each other."""
    words = ("--memory", "96MiB", "--without", "graphs", "mempools", "empty_cache")
    result = seeded("--seed", "2101", "--programs", str(programs), *words)
    assert_clean(result, 2_500 * programs)
    ladder = result["report"]["ladder"]
    assert ladder["stream_wait"] > 10
    assert ladder["transfer"] > 10
    assert ladder["collect_pending"] > 0
    assert result["report"]["pages_transferred"] > 20


LATE = ("stream", "host")
"""The waiters for uses of memory that was freed before they were complete."""


@pytest.mark.parametrize(
    ("variant", "allocator", "programs"),
    [
        ("stream", "ferro", 1),
        *(
            pytest.param(variant, allocator, programs, marks=LONG)
            for variant in LATE
            for allocator, programs in (("ferro", 5), ("native", 4), ("segments", 4))
        ),
    ],
)
def test_memory_that_its_stream_waits_for_late(variant: str, allocator: str, programs: int) -> None:
    words = ("--allocator", allocator, "--late-waits", variant)
    result = seeded(*words, "--seed", "11010", "--programs", str(programs))
    assert_clean(result, 2_000 * programs)
    done = result["by_kind"]
    assert "RecordStream" not in done
    kinds = ("Limit", "EmptyCache", "Replay", "MakeMempool")
    least = 5 if programs > 2 else 0
    assert min(done[kind] for kind in kinds) > least
    if allocator == "ferro":
        ladder = result["report"]["ladder"]
        assert min(ladder[step] for step in ("passed_pages", "transfer")) > least
        assert programs == 1 or ladder["move_pages"] > least


@pytest.mark.parametrize(
    ("variant", "programs"),
    [("host", 1), *(pytest.param(variant, 5, marks=LONG) for variant in LATE)],
)
def test_late_waits_on_a_full_card(variant: str, programs: int) -> None:
    words = ("--memory", "128MiB", "--without", "graphs", "mempools", "empty_cache")
    many = ("--seed", "11100", "--programs", str(programs))
    result = seeded("--late-waits", variant, *many, *words)
    assert_clean(result, 2_000 * programs)
    assert result["report"]["ladder"]["transfer"] > 2 * programs


def test_late_waits_on_each_step_of_the_ladder() -> None:
    words = ("--memory", "160MiB", "--without", "empty_cache", "--programs", "2")
    result = seeded("--late-waits", "stream", "--seed", "11310", *words)
    assert_clean(result, 4_000)
    unused = {step for step, count in result["report"]["ladder"].items() if count == 0}
    # These need recorded uses, of which the programs have none.
    assert unused == {"collect_pending", "stream_wait"}


@pytest.mark.parametrize("variant", LATE)
def test_a_missing_late_wait_is_detected(variant: str) -> None:
    """It is detected under native too, which is right without such a mistake."""
    words = ("--allocator", "native", "--late-waits", variant, "--mistake", "late")
    assert seeded(*words, "--programs", "3", "--stop-when-caught")["wrong_reads"] > 0


WITH_GROUPS = ("peers", "scalars", "sharing", "snapshots")


@pytest.mark.parametrize(
    ("words", "programs"),
    [
        (("checkpoints", *WITH_GROUPS), 1),
        pytest.param((), 3, marks=LONG),
        pytest.param(("checkpoints",), 3, marks=LONG),
        pytest.param(WITH_GROUPS, 3, marks=LONG),
    ],
)
def test_groups_replay_in_any_order(words: tuple[str, ...], programs: int) -> None:
    extras = ("--extras", "groups", *words)
    many = ("--seed", "9500", "--programs", str(programs))
    result = seeded(*many, "--without", "empty_cache", *extras)
    assert_clean(result, 3_000 * programs)
    done = result["by_kind"]
    least = 2 if programs > 1 else 1
    assert min(done[kind] for kind in ("JoinGroup", "LeaveGroup", "FailCapture")) > least


@pytest.mark.parametrize(
    "words",
    [
        ("wait",),
        ("record_stream",),
        ("update", "--extras", "scalars"),
        ("order", "--extras", "groups"),
    ],
    ids=lambda w: w[0],
)
def test_a_mistake_of_the_program_is_detected(words: tuple[str, ...]) -> None:
    found = seeded("--programs", "10", "--stop-when-caught", "--mistake", *words)
    assert found["wrong_reads"] > 0


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_faulty_driver(tmp_path_factory.mktemp("mutants"))


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(faults: Path, name: str) -> None:
    words = ("--programs", str(FAULTS[name]), "--stop-when-caught")
    try:
        found = seeded("--mutant", f"{faults}:{name}", *words)
    except pytest.fail.Exception as failure:
        if "the program ended with -11" not in str(failure):
            raise
        return  # the device used memory that no longer exists
    assert found["wrong_reads"] or found["errors"]


@pytest.mark.parametrize("name", GROUP_FAULTS)
def test_a_planted_fault_of_groups_is_found(faults: Path, name: str) -> None:
    words = ("--programs", str(GROUP_FAULTS[name]), "--stop-when-caught", "--extras", "groups")
    assert seeded("--mutant", f"{faults}:{name}", *words)["wrong_reads"] > 0


@pytest.mark.parametrize("name", LATE_FAULTS)
def test_a_planted_fault_of_late_waits_is_found(faults: Path, name: str) -> None:
    words = ("--programs", str(LATE_FAULTS[name]), "--stop-when-caught", "--late-waits", "stream")
    found = seeded("--mutant", f"{faults}:{name}", *words)
    assert found["wrong_reads"] or found["errors"]
