"""Programs whose convolutions, transforms or solvers may have had other workspaces on a card.

Those that no GPU was asked for are predicted, or derived from similar ones. Three of 33 programs
reserved 4 to 5 % more or less on an H200 under native than simulated. One of five later programs
reserved 20 % less, for a convolution of 32 groups. A GAN of grouped convolutions reserved twice as
much on an empty H200, because one algorithm takes a workspace of 8 GiB where memory is free: of
convolutions PyTorch skips the algorithms whose workspaces do not fit.

With `torch.backends.cudnn.benchmark` PyTorch tries many algorithms, and takes memory for the
largest workspace. The simulated cuDNN has two. A U-Net reserved 10 % more on an empty H200, and
another program 8.4 times as much. PyTorch skips algorithms that need more than the free memory, so
that program fits on cards limited to its simulated peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ferro_alloc.fit._shortage import short_by

Result = dict[str, Any]

MARGIN = 0.1
"""The share of the peak reserved by which a card may differ."""
_MORE = "a card with free memory may reserve more"
_PAGE = "docs/will-it-fit.md#workspaces-of-nvidias-libraries"


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


def most_derived(results: Sequence[Result]) -> Result:
    """The result whose lines stand for all: one that the margin decides, or else the one with most
    derived workspaces."""
    return max(results, key=lambda each: (decides(each), each["derived_workspaces"]))


def lines_of(result: Result) -> list[str]:
    """What is not known of the workspaces, and whether that makes the verdict unsure."""
    lines = []
    derived = result["derived_workspaces"]
    if result["cudnn_benchmark"]:
        lines.append(
            "  convolutions ran with torch.backends.cudnn.benchmark: their workspaces are "
            "simulated as without it. PyTorch tries more algorithms on a card and skips those "
            "that need more than the free memory, so on an empty card the peak may be several "
            "times higher, and the verdict says what the program needs"
        )
    is_close = decides(result)
    if derived and is_close:
        lines.append(
            "  the workspaces of some calls of NVIDIA's libraries (cuDNN, cuFFT, cuSPARSE, "
            "cuSOLVER) were derived from similar ones, so on a card the peak may be some "
            f"percent higher or lower, most of all under native: {derived}; {_MORE} ({_PAGE})"
        )
    elif derived:
        lines.append(
            "  workspaces of NVIDIA's libraries that were derived from similar ones, and not "
            f"measured: {derived}; {_MORE} ({_PAGE})"
        )
    if is_close:
        what = "missing" if result["out_of_memory"] else "spare"
        lines.append(
            f"  the {what} memory is less than {100 * MARGIN:.0f} % of the peak reserved, so the "
            "verdict holds as far as known"
        )
    return lines
