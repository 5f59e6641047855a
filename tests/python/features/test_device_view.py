"""The view of a device for authors of tools."""

from __future__ import annotations

import pytest

from ferro_alloc import DeviceMemoryView, FerroError, device
from tests.python.torch_programs import simulated


def test_numbers_and_forecasts() -> None:
    found = simulated("device_view.py", memory="1GiB")
    shown = found.pop("repr")
    assert shown.startswith("<DeviceMemoryView of device 0: DeviceNumbers(memory_allocated=")
    assert "requested_bytes=" in shown
    assert "late_hits=1" in shown
    not_installed = "ferro_alloc is not installed: call ferro_alloc.install() first"
    device_names = "expected a number from 0 to 0, a name such as 'cuda:0', a torch.device, or None"
    assert found == {
        "before": not_installed,
        "initialised by install": False,
        "wrong index": f"there is no device 7: {device_names}",
        "no index": f"there is no device True: {device_names}",
        "no size": "the size is -1: expected a number of bytes from 0 to 2**60 - 1",
        "empty": [{"hits": 0, "late_hits": 0, "misses": 0}],
        "round": [512, 512, 512, 1024, 5120],
        "forecast": [0, 2, 4],
        "numbers": [True, True, True, True, True, [3, 1, 1, 0, 4]],
        "one by one": True,
        "forecast of what is there": 0,
        "forecast on another stream": 2,
        "late": [0, 1, 0],
        "peak": True,
        "emptied": 0,
        "moved": 5,
        "repr after": f"<DeviceMemoryView of device 0: {not_installed}>",
        "after": not_installed,
    }


@pytest.mark.parametrize("conf", ["layout:pages", "layout:segments"])
def test_blocks_are_counted_in_both_layouts(conf: str) -> None:
    assert simulated("device_view_blocks.py", conf=conf) == {
        "of the previous allocator": 1,
        "allocated": 4,
        "freed": 3,
        "waiting for a stream": 2,
    }


def test_a_card_is_shared_with_others() -> None:
    assert simulated("shared_card.py", memory="1GiB") == {
        "verdict": True,
        "free": 256,
        "taken": 768,
        "kept": 64,
        "unmapped by the next one": 0,
        "ladder": True,
        "slowest": True,
        "reset": 0,
    }


def test_it_is_immutable_and_compares_by_device() -> None:
    assert DeviceMemoryView(1) == DeviceMemoryView(1) != DeviceMemoryView(2)
    with pytest.raises(AttributeError):
        DeviceMemoryView(1).index = 2  # type: ignore[misc]


def test_without_install_the_error_names_the_remedy() -> None:
    with pytest.raises(FerroError, match=r"call ferro_alloc\.install\(\) first"):
        device()
