"""vLLM: the whole engine with a tiny model, and its custom all-reduce between two ranks."""

from __future__ import annotations

import pytest

from tests.python.client_sides import ALLOCATORS, run_sides
from tests.python.sleep.test_vllm_backend import assert_slept
from tests.python.torch_programs import simulated

pytest.importorskip("vllm", reason="vllm is not installed: make test-clients")

REFUSED = "invalid argument"
# Blocks of 16 KiB in two pages: small and large tensors use separate pages, so each stream may hold
# two pages that are used in part.
PAGES_USED_IN_PART = 256


@pytest.mark.parametrize("how", ["eager", "compiled", "asleep"])
def test_engine(how: str) -> None:
    sides = run_sides("client_vllm_engine.py", how, allocators=("native", "pages"), memory="8GiB")
    native, pages = sides["native"].value, sides["pages"].value
    rounds = 3 if how == "asleep" else 1
    assert native["generated"] == pages["generated"] == [[8] * 4] * rounds
    assert pages["blocks"] + PAGES_USED_IN_PART >= native["blocks"] > 1000
    if how == "asleep":
        assert all(
            value[f"frees at level {level}"] for value in (native, pages) for level in (1, 2)
        )
    assert sides["pages"].peak_reserved <= sides["native"].peak_reserved


def test_engine_with_our_sleep_mode_backend() -> None:
    theirs = run_sides("client_vllm_engine.py", "asleep", allocators=("native",), memory="8GiB")
    ours = run_sides("client_vllm_engine.py", "backend", allocators=("pages",), memory="8GiB")
    native, pages = theirs["native"].value, ours["pages"].value
    assert native["generated"] == pages["generated"] == [[8] * 4] * 3
    assert all(pages[f"frees at level {level}"] for level in (1, 2))
    assert pages["blocks"] + PAGES_USED_IN_PART >= native["blocks"] > 1000


def test_worker_with_our_sleep_mode_backend() -> None:
    """The program that `tests/python/sleep/test_vllm_backend.py` runs with a stand-in."""
    arguments = ("real", "ferro_alloc", "installed")
    assert_slept(simulated("vllm_backend.py", *arguments, memory="2GiB"))


def test_engine_in_a_process_of_its_own() -> None:
    allocators = ("native", "everywhere")
    sides = run_sides("client_vllm_engine.py", "process", allocators=allocators, memory="8GiB")
    native, pages = (sides[name].value for name in allocators)
    assert native["generated"] == pages["generated"] == [[8] * 4]
    assert native["elsewhere"]
    assert pages["elsewhere"]
    assert (native["backend"], pages["backend"]) == ("native", "ferro_alloc")
    assert pages["engine_reserved"] <= native["engine_reserved"]
    assert pages["blocks"] + PAGES_USED_IN_PART >= native["blocks"] > 1000


def test_serve_answers_and_logs_its_number_of_blocks() -> None:
    """Takes a minute for each allocator, as two processes start and compile."""
    found = {
        name: simulated("client_vllm_serve.py", name, env=ALLOCATORS[name], memory="8GiB")["value"]
        for name in ("native", "expandable", "everywhere")
    }
    print(found)
    native, ours = found["native"], found["everywhere"]
    for name, value in found.items():
        assert (value["tokens"], value["status"]) == (8, 0), name
        assert len(value["graphs_gib"]) == 2, name
        assert value["blocks"] > 1000, name
    assert ours["blocks"] + PAGES_USED_IN_PART >= native["blocks"]
    assert ours["graphs_gib"] <= native["graphs_gib"]
    # `top` sees the memory of the graphs' pools. vLLM counts all memory that was taken while it
    # captured.
    assert native["pools"] is None
    assert 0 < ours["pools"] / 2**30 <= ours["graphs_gib"][1] + 0.005


@pytest.mark.parametrize(
    ("allocator", "how", "conf", "works"),
    [
        ("native", "", "", True),
        ("expandable", "", "", False),
        ("expandable", "setting", "", True),
        ("pages", "", "", False),
        ("pages", "setting", "", True),
        ("pages", "", "graph_layout:segments", True),
        ("segments", "", "layout:segments", True),
    ],
)
def test_custom_all_reduce_in_a_graph(allocator: str, how: str, conf: str, works: bool) -> None:
    settings = {**ALLOCATORS[allocator], "VLLM_SKIP_P2P_CHECK": "1"}
    found = simulated("client_vllm_all_reduce.py", allocator, how, env=settings, conf=conf, count=2)
    for rank in found["ranks"]:
        assert not rank.get("disabled")
        assert rank.get("shape") == ([1 << 18] if works else None), rank
        assert (REFUSED in rank.get("error", "")) is not works, rank
    if "graph_layout" in conf:
        assert [rank["expandable"] for rank in found["ranks"]] == [[True], [True]]
