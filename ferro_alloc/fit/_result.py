"""The outcome of one simulated run as plain data, as `--json` writes it: docs/will-it-fit.md."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ferro_alloc import sim
from ferro_alloc.fit import _certainty, _refused
from ferro_alloc.fit._recording import PEAKS, Recording, Sum
from ferro_alloc.fit._stopping import STATUS
from ferro_alloc.fit._together import TOGETHER
from ferro_alloc.sim import _control
from ferro_alloc.sim.cards import LIBRARIES, Card

SCHEMA = 1
FITS, AS_FAR_AS_KNOWN = "fits", "fits as far as known"
RAN_OUT, UNKNOWN = "does not fit", "unknown"
FITTING = (FITS, AS_FAR_AS_KNOWN)
DOES_NOT_FIT = 12
"""The exit status, which is the errno ENOMEM."""
FITS_AS_FAR_AS_KNOWN = 13
"""The exit status if a size or a branch depended on values that were not computed, or on an
operator that was refused, or the memory is within the margin of cuDNN's algorithms."""
ENDED_BY_UNKNOWN = 14
"""The exit status of a program that an exception ended after it read such values."""
TIGHT = 0.02
"""Share of the card's memory by which a real card may differ: its total by 1 % between versions of
the driver, the peak by 1.6 % on an H100."""
MOST_LINES = 10
OUT_OF_MEMORY = "out of memory"
CLOSED = ("Connection closed by peer", "Connection reset by peer")

Result = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    status: int = 0
    """The program's own exit status."""
    error: BaseException | None = None
    """The exception that ended it."""
    stopped: str = ""
    """Why it was ended before its own end: one of `_stopping.STATUS`, or empty."""
    place: str = ""
    """The program's innermost line, as in "train.py:12", where an exception or the time limit ended
    it; or empty."""


def result_of(
    recording: Recording,
    card: Card,
    own_memory: bool,
    allocator: str,
    outcome: Outcome,
    rows: str,
    seconds: float,
) -> Result:
    """`rows` is the assumption of this run, one of `_certainty.ROWS`, or with `ALONE`."""
    error = outcome.error
    messages = [each.message for each in _control.library_shortages() for _ in range(each.count)]
    if error is not None and OUT_OF_MEMORY in f"{type(error).__name__} {error}".lower():
        messages.append(str(error).splitlines()[0])
    ran_out = recording.failure_count > 0 or bool(messages)
    memory = sim.memory()
    deducted = card.context + LIBRARIES
    result: Result = {
        "schema": SCHEMA,
        "verdict": UNKNOWN,
        "sure": False,
        "tight": False,
        "gpu_used": any(each.peak for each in memory),
        "went_on": ran_out and outcome.status == 0,
        "exit_status": outcome.status,
        "program_status": outcome.status,
        "partial": outcome.stopped,
        "ended_ranks": TOGETHER.ended() if outcome.status else [],
        "ended_by": "",
        "error": "" if error is None else _one_line(error),
        "ended_at": outcome.place,
        "card": {
            "key": card.key,
            "name": card.name,
            "memory_bytes": memory[0].capacity,
            "own_memory": own_memory,
            "context_bytes": card.context,
            "context_source": card.context_source,
            "libraries_bytes": LIBRARIES,
        },
        "allocator": allocator,
        "seconds": round(seconds, 1),
        "devices": [_device(recording, i, m, deducted) for i, m in enumerate(memory)],
        "other_engines": len(recording.done_without),
        "out_of_memory": _failures(recording, messages),
        "driver_calls": recording.driver_calls,
        "unknown_kinds": recording.problem,
        "values": sim.has_values(),
        "uncomputed": _certainty.uncomputed(),
        "rows": rows,
        "all_rows": None,
        "few_rows": None,
        "lost_runs": [],
        "refused": _refused.refused(error, outcome.place),
        "cudnn_benchmark": _control.has_benchmarked(),
        "derived_workspaces": _control.derived_workspaces(),
        "not_simulated": sim.not_simulated(),
    }
    is_own_end = error is not None and not _is_of_another_rank(error, result["ended_ranks"])
    if is_own_end and not ran_out and _refused.end_of(result) is None:
        result["ended_by"] = _certainty.last_read()
    result["verdict"], result["exit_status"] = _verdict(result, ran_out, outcome)
    ran_out_surely = result["verdict"] == RAN_OUT and _certainty.lacks_surely(result)
    result["sure"] = result["verdict"] == FITS or ran_out_surely
    spare = min(device["spare_bytes"] for device in result["devices"])
    result["tight"] = result["verdict"] in FITTING and spare < TIGHT * memory[0].capacity
    return result


def _verdict(result: Result, ran_out: bool, outcome: Outcome) -> tuple[str, int]:
    """The verdict, and the exit status of the command."""
    if ran_out:
        return RAN_OUT, DOES_NOT_FIT
    if outcome.stopped:
        return UNKNOWN, STATUS[outcome.stopped]
    if result["ended_by"]:
        return UNKNOWN, ENDED_BY_UNKNOWN
    if outcome.status != 0:
        return UNKNOWN, outcome.status
    if _certainty.is_sure(result):
        return FITS, 0
    return AS_FAR_AS_KNOWN, FITS_AS_FAR_AS_KNOWN


def _is_of_another_rank(error: BaseException, ended_ranks: list[dict[str, int]]) -> bool:
    """Whether a rank failed because it waited for one that had failed: the error is one of
    `torch.distributed`, or that of a closed connection, which Gloo raises."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    is_of_group = "DistError" in kinds or any(text in str(error) for text in CLOSED)
    return bool(ended_ranks) and is_of_group


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(": ")


def _device(recording: Recording, index: int, memory: sim.DeviceMemory, deducted: int) -> Result:
    allocated, reserved = (recording.peak(index, name) for name in PEAKS)
    sums = recording.sums(index)
    return {
        "index": index,
        "peak_in_use_bytes": memory.peak,
        "spare_bytes": memory.margin,
        "peak_reserved_bytes": reserved,
        "peak_allocated_bytes": allocated,
        # Memory that libraries took outside of PyTorch, beyond the deducted part.
        "outside_bytes": max(0, memory.peak - reserved - deducted) if memory.peak else 0,
        "emptied_cache": recording.count(index, "num_alloc_retries"),
        "allocations": recording.count(index, "allocation.all.allocated"),
        "allocated_bytes": recording.count(index, "allocated_bytes.all.allocated"),
        "segments": recording.count(index, "segment.all.allocated"),
        "kinds": _by_kind(sums),
        "lines": _by_line(sums),
        "tags": _by_tag(sums),
    }


def _failures(recording: Recording, messages: list[str]) -> Result | None:
    """`messages`: of failures that PyTorch's allocator does not know."""
    if not recording.failures:
        return {"count": len(messages), "error": messages[-1]} if messages else None
    first = recording.failures[-1]
    return {
        "count": recording.failure_count,
        "device": first.device,
        "requested_bytes": first.requested,
        "device_free_bytes": first.free,
        "reserved_bytes": first.reserved,
        "allocated_bytes": first.allocated,
        "limit_bytes": first.limit,
        "file": shown(first.file),
        "line": first.line,
        "kinds": _by_kind(first.sums),
        "lines": _by_line(first.sums),
        "tags": _by_tag(first.sums),
    }


def _by_kind(sums: list[Sum]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for kind, *_, size, _, _ in sums:
        found[kind] += size
    return dict(found.most_common())


def _by_tag(sums: list[Sum]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for *_, size, _, tag in sums:
        if tag:
            found[tag] += size
    return dict(found.most_common())


def _by_line(sums: list[Sum]) -> list[Result]:
    found: dict[tuple[str, int, str, str], Counter[str]] = defaultdict(Counter)
    for kind, file, line, function, node, size, _, _ in sums:
        found[file, line, function, node][kind] += size
    largest = sorted(found.items(), key=lambda item: -item[1].total())[:MOST_LINES]
    return [
        {
            "file": shown(file),
            "line": line,
            "function": function,
            "backward_of": node,
            "bytes": kinds.total(),
            "kinds": dict(kinds.most_common()),
        }
        for (file, line, function, node), kinds in largest
    ]


def shown(file: str) -> str:
    """Relative to the working directory, or from `site-packages` on."""
    before, found, rest = file.rpartition("/site-packages/")
    if found:
        return rest
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, FileNotFoundError):  # the program may have removed its folder
        return file or before
