"""Stacks of a snapshot: the requesting line of code, its kind, and the frames to show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ferro_alloc._own_lines import NO_LINE, is_own

Frame = Mapping[str, Any]

# In the order of the report's colours and stacks.
KINDS = (
    "parameters",
    "optimizer state",
    "gradients",
    "activations",
    "backward",
    "graphs and pools",
    "libraries",
    "other",
)
_MOST_FRAMES = 12
_FILE_OF_PYTHON = re.compile(r"\.py$|^<(?!unknown)")
_MAKES_PARAMETERS = re.compile(r"^(_apply|to|cuda|convert|reset_parameters|_load_from_state_dict)$")


def python_frames(frames: Sequence[Frame]) -> list[Frame]:
    """The frames of Python files, innermost first."""
    return [frame for frame in frames if _FILE_OF_PYTHON.search(frame["filename"])]


def line_of(frames: Sequence[Frame]) -> str:
    """The innermost line outside of libraries, or else of Python, as in `file.py:12 f`."""
    found = python_frames(frames)
    if not found:
        return NO_LINE
    own = (frame for frame in found if is_own(frame["filename"]))
    frame = next(own, found[0])
    return f"{_short(frame['filename'])}:{frame['line']} {frame['name']}"


def shown(frames: Sequence[Frame]) -> list[str]:
    """The frames to show, innermost first."""
    return [
        f"{_short(frame['filename'])}:{frame['line']} {frame['name']}"
        for frame in python_frames(frames)[:_MOST_FRAMES]
    ]


def kind_of(frames: Sequence[Frame]) -> str:
    """The kind of a request by its frames: one of `KINDS`.

    This is a heuristic: the frames show that an optimizer, a module or the backward pass made the
    request, but not the later use of the tensor.
    """
    in_module = in_backward = accumulates = False
    for frame in frames:
        name, file = frame["name"], frame["filename"]
        if "/torch/optim/" in file or "optimizer" in file:
            return "optimizer state"
        if "/torch/nn/" in file:
            if _MAKES_PARAMETERS.match(name) or name in ("__init__", "__new__"):
                return "parameters"
            in_module = in_module or name == "_call_impl" or "/functional.py" in file
        if name == "_engine_run_backward" or "autograd::Engine" in name:
            in_backward = True
        accumulates = accumulates or "AccumulateGrad" in name
        if "getChosenWorkspace" in name or "getCurrentCUDABlasHandle" in name:
            return "libraries"
    if accumulates:
        return "gradients"
    if in_backward:
        return "backward"
    return "activations" if in_module else "other"


def _short(file: str) -> str:
    """The last two parts of a path, which distinguish files without revealing the machine."""
    return "/".join(file.split("/")[-2:])


class Stacks:
    """Stores each stack once, by number. 0 is the empty stack. Not thread-safe."""

    def __init__(self) -> None:
        # A snapshot shares the dictionaries of its frames, so most stacks are found by identity.
        # The lists are kept, because otherwise another list could get the same identity.
        self._by_identity: dict[tuple[int, ...], int] = {}
        self._by_text: dict[tuple[str, str, tuple[str, ...]], int] = {}
        self._kept: list[Sequence[Frame]] = []
        self.lines: list[str] = []
        self.kinds: list[str] = []
        self.frames: list[list[str]] = []
        self.samples: list[Sequence[Frame]] = []
        self.add(())

    def add(self, frames: Sequence[Frame]) -> int:
        identity = tuple(map(id, frames))
        number = self._by_identity.get(identity)
        if number is None:
            self._kept.append(frames)
            text = (line_of(frames), kind_of(frames), tuple(shown(frames)))
            number = self._by_text.setdefault(text, len(self.lines))
            if number == len(self.lines):
                self.lines.append(text[0])
                self.kinds.append(text[1])
                self.frames.append(list(text[2]))
                self.samples.append(frames)
            self._by_identity[identity] = number
        return number
