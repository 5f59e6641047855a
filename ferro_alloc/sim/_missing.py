"""Describes in lines of text what the simulated GPU could not do for a program."""

from __future__ import annotations

from itertools import groupby

from ferro_alloc.sim import _control

MOST_NAMED = 8
"""Maximum number of places, kernels and functions in a line; the rest is counted."""
OTHERWISE = "do it on the CPU"
ADVICE = {
    "cuDNN": "set torch.backends.cudnn.enabled = False around it",
    "cuBLAS": "leave its settings as they are",
    "NVRTC": "leave the function out",
}


def not_simulated() -> list[str]:
    """Returns these lines; the last lists libraries and functions that failed, and what to do.

    Earlier lines, if any, list places that read values which nothing computed, and kernels that
    were launched outside of PyTorch's operators and did nothing.
    """
    lines = []
    reads = _control.uncomputed_reads()
    if reads:
        places: dict[str, int] = {}
        for read in reads:
            name = read.place or f"outside of Python, in {read.operator}"
            places[name] = places.get(name, 0) + read.count
        lines.append(
            "values taken that were not computed, zeros or valid positions: "
            + _enumerate([f"{place} ({_times(count)})" for place, count in places.items()])
        )
    kernels = _control.kernels()
    if kernels:
        lines.append(f"kernels that did nothing: {_enumerate(list(kernels))}")
    failures = sorted(_control.library_failures(), key=lambda failure: failure.library)
    missing = [
        f"{library} in {_enumerate([failure.operator for failure in group])}"
        f" ({ADVICE.get(library, OTHERWISE)})"
        for library, group in groupby(failures, key=lambda failure: failure.library)
    ]
    named = {failure.library.lower() for failure in failures}
    missing += [
        function
        for function in _control.unsupported()
        # cuFFT and cuSOLVER fail because NVIDIA's libcudart is linked into them.
        if not ("libcudart in lib" in function and any(name in function for name in named))
    ]
    lines.append(f"not simulated: {_enumerate(missing) if missing else 'nothing was missed'}")
    return lines


def _enumerate(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
