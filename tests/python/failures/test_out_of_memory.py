"""Out-of-memory errors: holders of memory, shortfall and advice, as text and as numbers."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from tests.python.torch_programs import simulated


@cache
def outcome() -> dict[str, Any]:
    """1 GiB holds 300 MiB of native, 200 of the default stream, 100 of another, and 64 in a
    pool."""
    return simulated("out_of_memory.py", memory="1GiB")


def test_the_message_names_shortfall_holders_and_what_to_try() -> None:
    text = outcome()["text"]
    assert text.startswith("CUDA out of memory. Tried to allocate 500.00 MiB. GPU 0 has a total ")
    assert "664.00 MiB is allocated by PyTorch" in text
    ours = text.partition("ferro_alloc: ")[2]
    assert ours.startswith("verdict = CAPACITY: live memory and this request exceed the device")
    for part in (
        "Short of 140.00 MiB.",
        "Live 364.00 MiB (private pools 64.00 MiB)",
        "Of the default pool the default stream holds 200.00 MiB (200.00 MiB live), stream 0x",
        " holds 100.00 MiB (100.00 MiB live).",
        "Private pools hold: (0, 1) 64.00 MiB (64.00 MiB live).",
        "Beside it, the allocator 'native' holds 300.00 MiB, of which 300.00 MiB are live.",
    ):
        assert part in ours
    assert ours.endswith(
        "Try a smaller batch, recomputed or offloaded activations, or more devices."
    )
    assert "stranded" not in ours
    assert set(re.findall(r"[\d.]+ (bytes|[KMG]iB)", ours)) == {"MiB"}


def test_the_numbers_of_the_message_can_be_had() -> None:
    assert outcome()["explained"] == {
        "verdict": "CAPACITY",
        "request": 500,
        "shortfall": 140,
        "free": 360,
        "limit": None,
        "reserved": 364,
        "live": 364,
        "previous": [300, 300],
        "other": 0,
        "streams": [[False, 200, 200], [True, 100, 100]],
        "pools": [["(0, 1)", 64]],
    }
    assert outcome()["arguments"]
    assert outcome()["quoted"]
    assert outcome()["attribute"]


def test_the_limit_is_the_one_that_was_set() -> None:
    limited = outcome()["limited"]
    assert (limited["verdict"], limited["limit"]) == ("LIMIT", 512)
    assert limited["shortfall"] == 200 - (512 - 364)
    assert limited["previous"] == [0, 0]


def test_of_other_errors_there_are_none() -> None:
    assert outcome()["native"] is None
    assert outcome()["another error"] is None
    assert outcome()["older than the last 16"] is None
    assert outcome()["no error"]
