"""The outcome of one simulated run as plain data, as `--json` writes it: docs/will-it-fit.md."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from ferro_alloc import sim
from ferro_alloc.fit._recording import PEAKS, Recording, Sum
from ferro_alloc.sim.cards import LIBRARIES, Card

SCHEMA = 1
FITS, RAN_OUT, UNKNOWN = "fits", "does not fit", "unknown"
DOES_NOT_FIT = 12
"""The exit status, which is the errno ENOMEM."""
MOST_LINES = 10
OUT_OF_MEMORY = "out of memory"

Result = dict[str, Any]


def result_of(
    recording: Recording,
    card: Card,
    own_memory: bool,
    allocator: str,
    status: int,
    error: BaseException | None,
    seconds: float,
) -> Result:
    """`status` is the program's own, `error` the exception that ended it, if any."""
    ran_out = recording.failure_count > 0 or (
        error is not None and OUT_OF_MEMORY in f"{type(error).__name__} {error}".lower()
    )
    verdict = RAN_OUT if ran_out else FITS if status == 0 else UNKNOWN
    memory = sim.memory()
    deducted = card.context + LIBRARIES
    return {
        "schema": SCHEMA,
        "verdict": verdict,
        "went_on": ran_out and status == 0,
        "exit_status": DOES_NOT_FIT if ran_out else status,
        "program_status": status,
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
        "out_of_memory": _failures(recording, error if ran_out else None),
        "unknown_kinds": recording.problem,
        "not_simulated": sim.not_simulated(),
    }


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
        "emptied_cache": recording.retries(index),
        "kinds": _by_kind(sums),
        "lines": _by_line(sums),
        "tags": _by_tag(sums),
    }


def _failures(recording: Recording, error: BaseException | None) -> Result | None:
    if not recording.failures:
        return None if error is None else {"count": 1, "error": str(error).splitlines()[0]}
    first = recording.failures[-1]
    return {
        "count": recording.failure_count,
        "device": first.device,
        "requested_bytes": first.requested,
        "device_free_bytes": first.free,
        "reserved_bytes": first.reserved,
        "allocated_bytes": first.allocated,
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
    except ValueError:
        return file or before
