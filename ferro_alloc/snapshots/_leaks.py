"""Leaks: lines of code whose live bytes grow from mark to mark."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ferro_alloc._errors import FerroError
from ferro_alloc._segments import segments
from ferro_alloc._status import size_text
from ferro_alloc.snapshots._stacks import Stacks

LEAST_MARKS = 3
"""With fewer marks a leak cannot be distinguished from warm-up."""


@dataclass(frozen=True)
class Leak:
    """A line of code whose memory grows from mark to mark."""

    device: int
    line: str
    frames: list[str]
    """The stack of one of its blocks, innermost first."""
    tag: str
    """The tag of its blocks; empty without one, or if ferro_alloc did not allocate them."""
    bytes_at_marks: list[int]
    blocks_at_marks: list[int]

    @property
    def grew_bytes(self) -> int:
        """Growth from the first mark to the last."""
        return self.bytes_at_marks[-1] - self.bytes_at_marks[0]

    def __str__(self) -> str:
        per_mark = self.grew_bytes / (len(self.bytes_at_marks) - 1)
        return (
            f"device {self.device}: {size_text(self.grew_bytes)} more in "
            f"{self.blocks_at_marks[-1] - self.blocks_at_marks[0]:,} blocks, "
            f"{per_mark / (1 << 20):.2f} MiB a mark: {self.line}"
            f"{', tag ' if self.tag else ''}{self.tag}"
        )


_Key = tuple[int, str, str]
"""Device, line, tag."""


@dataclass(frozen=True)
class _Holding:
    size: int
    blocks: int
    frames: list[str]


class LeakWatch:
    """The memory that lines of code hold at marks of the program. Not thread-safe.

    A mark visits every block: a millisecond for some hundred blocks. It does not wait.
    """

    def __init__(self, declared: Sequence[str]) -> None:
        self._declared = tuple(declared)
        self._marks: list[dict[_Key, _Holding]] = []

    @property
    def marks(self) -> int:
        return len(self._marks)

    def mark(self) -> None:
        """Records the live memory; call it at the same place of each step."""
        torch = _recording()
        stacks = Stacks()
        sums: defaultdict[tuple[int, int, str], list[int]] = defaultdict(lambda: [0, 0])
        tags = [_tags(device) for device in range(torch.cuda.device_count())]
        for segment in segments():
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    device = segment["device"]
                    tag = tags[device].get(block["address"], "")
                    entry = sums[device, stacks.add(block.get("frames", ())), tag]
                    entry[0] += block["size"]
                    entry[1] += 1
        held: dict[_Key, _Holding] = {}
        for (device, stack, tag), (size, blocks) in sums.items():
            frames = stacks.frames[stack]
            if tag in self._declared or any(
                text in frame for text in self._declared for frame in frames
            ):
                continue
            key = device, stacks.lines[stack], tag
            before = held.get(key, _Holding(0, 0, frames))
            held[key] = _Holding(before.size + size, before.blocks + blocks, before.frames)
        self._marks.append(held)

    def found(self) -> list[Leak]:
        """Returns the lines that leak, the largest first; empty with fewer than `LEAST_MARKS`
        marks.

        For each mark it computes the level below which a line never falls again. The line leaks if
        that level grew in at least half of the steps between marks, including at least one in the
        last half. So memory of the first steps is no leak, nor is memory that comes and goes.
        """
        if self.marks < LEAST_MARKS:
            return []
        nothing = _Holding(0, 0, [])
        leaks = []
        for key in self._marks[-1]:
            held = [mark.get(key, nothing) for mark in self._marks]
            sizes = [holding.size for holding in held]
            if _grows(sizes):
                device, line, tag = key
                blocks = [holding.blocks for holding in held]
                leaks.append(Leak(device, line, held[-1].frames, tag, sizes, blocks))
        return sorted(leaks, key=lambda leak: -leak.grew_bytes)

    def __str__(self) -> str:
        if self.marks < LEAST_MARKS:
            return f"{self.marks} marks: at least {LEAST_MARKS} are needed to tell a leak"
        found = self.found()
        if not found:
            return f"no line of code grew over {self.marks} marks"
        return "\n".join(map(str, found))


def leaks(*, declared: Sequence[str] = ()) -> LeakWatch:
    """Starts to watch for leaks, with a first mark.

        watch = ferro_alloc.leaks(declared=["kv_cache.py"])
        for batch in batches:
            step(batch)
            watch.mark()
        print(watch)

    `declared` has parts of frames, as in `"kv_cache.py"` or `"cache.py:12"`, and tags, as in `"kv
    cache"`, whose memory may grow. It works under any allocator, but tags are known only under
    ferro_alloc. Raises `FerroError` while no history is recorded, because the history has the
    lines.
    """
    if isinstance(declared, str):
        raise TypeError(
            f"declared is {declared!r}: expected a sequence of texts, as in [{declared!r}]"
        )
    watch = LeakWatch(declared)
    watch.mark()
    return watch


def _grows(sizes: list[int]) -> bool:
    """See `LeakWatch.found()`."""
    floor = list(sizes)
    for i in reversed(range(len(floor) - 1)):
        floor[i] = min(floor[i], floor[i + 1])
    steps = [after > before for before, after in pairwise(floor)]
    last_half = steps[len(steps) // 2 :]
    return 2 * sum(steps) >= len(steps) and any(last_half)


def _tags(device: int) -> dict[int, str]:
    """The tags of live blocks, by their addresses."""
    extension = sys.modules.get("ferro_alloc._C")
    return {} if extension is None else dict(extension.tagged_blocks(device))


def _recording() -> Any:
    torch: Any = sys.modules.get("torch")
    # Before CUDA is initialised the native allocator has no device, and would crash.
    initialised = torch is not None and torch.cuda.is_initialized()
    if not initialised or not torch._C._cuda_isHistoryEnabled():
        raise FerroError(
            "no history of the memory is recorded: call "
            'torch.cuda.memory._record_memory_history(context="state", stacks="python") first'
        )
    return torch
