"""The misuses that the debug mode of graphs finds."""

from __future__ import annotations

import enum
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from ferro_alloc._errors import FerroError
from ferro_alloc._own_lines import is_own

if TYPE_CHECKING:
    from ferro_alloc import _C

Frame = tuple[str, int, str]
"""File, line and function."""

_PACKAGE = str(Path(__file__).resolve().parents[1])
_UNKNOWN = "an unknown line"


class MisuseKind(enum.Enum):
    FREED_INPUT = "freed input"
    """The graph uses a tensor that was freed."""
    FREED_WORKSPACE = "freed workspace"
    """The graph uses a freed workspace of cuBLAS."""
    KEPT_RESULT = "kept result"
    """The graph reads memory that another graph wrote and the program released, and a graph that
    may have overwritten it has replayed since."""
    OVERWRITTEN_RESULT = "overwritten result"
    """The graph overwrites the live result of another graph of its pool, in which both were
    captured before it joined its exclusive group. Reported by a `GraphMisuseWarning`."""
    OVERLAP = "overlapping replays"
    """The graph is launched while another one of its exclusive group runs."""
    ASLEEP = "asleep"
    """The graph uses memory that `ferro_alloc.sleep()` has returned to the driver."""
    DELETED_POOL = "deleted pool"
    """The graph uses memory of a pool that no handle, graph or MemPool holds."""


class GraphMisuseError(FerroError):
    """Raised by a replay in debug mode, before anything is launched.

    `graph` and `partner`, which may be None, describe graphs. `address` and `bytes` are the
    allocation concerned, zeros if it is unknown. `allocated_at` and `freed_at` are its stacks, the
    innermost line first, as in `serve.py:12 decode`; empty if they were not recorded.
    """

    def __init__(
        self,
        kind: MisuseKind,
        graph: str,
        block: _C.FoundBlock | None,
        partner: str | None = None,
        writer: str | None = None,
    ) -> None:
        self.kind = kind
        self.graph = graph
        self.partner = partner
        self.address = 0 if block is None else block.address
        self.bytes = 0 if block is None else block.bytes
        self.allocated_at = () if block is None else lines_of(block.allocated_at)
        self.freed_at = () if block is None else lines_of(block.freed_at)
        allocated = _UNKNOWN if block is None else own_line(block.allocated_at)
        freed = _UNKNOWN if block is None else own_line(block.freed_at)
        and_freed = f" and freed at {freed}" if self.freed_at else ""
        memory = f"{self.bytes} bytes at {self.address:#x}, which were allocated at {allocated}"
        tag = f" with the tag {block.tag!r}" if block is not None and block.tag else ""
        super().__init__(
            {
                MisuseKind.FREED_INPUT: (
                    f"{graph} uses {memory} and freed at {freed}: keep the tensor as long as the "
                    "graph replays, for instance by record_buffer() of its pool."
                ),
                MisuseKind.FREED_WORKSPACE: (
                    f"{graph} uses a workspace of cuBLAS, {memory} and freed at {freed}: "
                    "clear no workspaces while graphs use them."
                ),
                MisuseKind.KEPT_RESULT: (
                    f"{graph} uses {memory} and freed at {freed}, and {partner} has replayed since "
                    f"{writer} wrote them: keep the tensor, or replay the writer again."
                ),
                MisuseKind.OVERWRITTEN_RESULT: (
                    f"{graph} overwrites {memory}, a result of {partner} that is still in use. "
                    "Both were captured before their pool joined its exclusive group, so they must "
                    "replay in the order of their captures: read the result before this replay, "
                    "or declare the pool before its second capture."
                ),
                MisuseKind.OVERLAP: (
                    f"{graph} is launched while {partner} of its exclusive group still runs, and "
                    f"both use the same pages, for example for {memory}: let one wait for the "
                    "other, or create the group without ordered=True, from the graphs themselves."
                ),
                MisuseKind.ASLEEP: (
                    f"{graph} uses {memory}{tag}, and which are asleep: call ferro_alloc.wake() "
                    "before the replay."
                ),
                MisuseKind.DELETED_POOL: (
                    f"{graph} uses {memory}{and_freed}, of a pool that no handle, graph or MemPool "
                    "holds: keep its handle or one of its graphs, and release only your own pools."
                ),
            }[kind]
        )


class GraphMisuseWarning(UserWarning):
    """Issued by a replay in debug mode that is wrong only if the program reads the overwritten
    result later. If the warning is an error, nothing is launched.

    `misuse` has the facts.
    """

    def __init__(self, misuse: GraphMisuseError) -> None:
        self.misuse = misuse
        super().__init__(str(misuse))


def warn_of(misuse: GraphMisuseError) -> None:
    """Issues a `GraphMisuseWarning` at the innermost line of the program itself."""
    level = 1
    frame = sys._getframe(1)
    while frame is not None and not _is_of_program(frame.f_code.co_filename):
        level += 1
        frame = frame.f_back  # type: ignore[assignment]
    warnings.warn(GraphMisuseWarning(misuse), stacklevel=level + 1)


def lines_of(frames: list[Frame]) -> tuple[str, ...]:
    return tuple(_text_of(frame) for frame in frames)


def own_line(frames: list[Frame]) -> str:
    """The innermost line of the program itself, as in `serve.py:12 decode`."""
    own = (f for f in frames if _is_of_program(f[0]))
    frame = next(own, frames[0] if frames else None)
    return _UNKNOWN if frame is None else _text_of(frame)


def _is_of_program(file: str) -> bool:
    return is_own(file) and not file.startswith(_PACKAGE)


def _text_of(frame: Frame) -> str:
    file, line, function = frame
    return f"{'/'.join(Path(file).parts[-2:])}:{line} {function}"
