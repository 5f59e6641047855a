"""Live memory that moves before a request fails."""

from __future__ import annotations

import pytest

from tests.python.torch_programs import simulated


@pytest.mark.parametrize("setting", ["off", "on", "switched on"])
def test_a_request_gets_the_pages_beside_live_tensors(setting: str) -> None:
    on = setting != "off"
    found = simulated("live_moves.py", setting, memory="8GiB")
    # 448 MiB are missing, and each handle has three pages of 2 MiB to give beside one that is live.
    assert found == {
        "served": True,
        "values": True,
        "addresses": True,
        "moved": [75, 150, 225] if on else [0, 0, 0],
        "ended by it": int(on),
    }
