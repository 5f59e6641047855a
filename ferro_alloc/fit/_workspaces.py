"""Programs whose convolutions, transforms or solvers may have had other workspaces on a card.

Those that no GPU was asked for are predicted, or derived from similar ones. Three of 33 programs
reserved 4 to 5 % more or less on an H200 under native than simulated. One of five later programs
reserved 20 % less, for a convolution of 32 groups.

With `torch.backends.cudnn.benchmark` PyTorch tries many algorithms, and takes memory for the
largest workspace. The simulated cuDNN has two. A U-Net reserved 10 % more on an empty H200, and
another program 8.4 times as much. PyTorch skips algorithms that need more than the free memory, so
that program fits on cards limited to its simulated peak.
"""

from __future__ import annotations

from typing import Any

from ferro_alloc.fit._shortage import short_by

Result = dict[str, Any]

MARGIN = 0.1
"""The share of the peak reserved by which a card may differ."""


def decides(result: Result) -> bool:
    """Whether the memory that is left or missing is within the margin."""
    if not result["cudnn_benchmark"] and not result["derived_workspaces"]:
        return False
    failure = result["out_of_memory"]
    if failure:
        return 0 < short_by(result) < MARGIN * int(failure.get("reserved_bytes", 0))
    return any(
        device["spare_bytes"] < MARGIN * device["peak_reserved_bytes"]
        for device in result["devices"]
    )


def lines_of(result: Result) -> list[str]:
    lines = []
    if result["cudnn_benchmark"]:
        lines.append(
            "  convolutions ran with torch.backends.cudnn.benchmark: their workspaces are "
            "simulated as without it. PyTorch tries more algorithms on a card and skips those "
            "that need more than the free memory, so on an empty card the peak may be several "
            "times higher, and the verdict says what the program needs"
        )
    if decides(result):
        if not result["cudnn_benchmark"]:
            lines.append(
                "  the workspaces of some calls of NVIDIA's libraries (cuDNN, cuFFT, cuSPARSE, "
                "cuSOLVER) were derived from similar ones, so on a card the peak may be some "
                "percent higher or lower, most of all under native"
            )
        what = "missing" if result["out_of_memory"] else "spare"
        lines.append(
            f"  the {what} memory is less than {100 * MARGIN:.0f} % of the peak reserved, so the "
            "verdict holds as far as known"
        )
    return lines
