"""No stream waits for work that may itself wait for another rank, as long as memory is left."""

from __future__ import annotations

import pytest

from tests.python.torch_programs import Result, simulated

WAITS = {"waits": 1, "grown_mib": 0}
GROWS = {"waits": 0, "grown_mib": 64}


def found(launched: str) -> Result:
    return simulated("rank_messages.py", launched, memory="1GiB", mode="adversarial", turn="0.001")


@pytest.mark.parametrize("launched", ["none", "collective", "on the host"])
def test_memory_comes_from_a_stream_that_waits_for_no_other_rank(launched: str) -> None:
    assert found(launched) == WAITS


@pytest.mark.parametrize("launched", ["send", "recv", "batch", "inference"])
def test_memory_grows_where_a_message_may_be_under_way(launched: str) -> None:
    assert found(launched) == GROWS
