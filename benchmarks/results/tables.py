"""Writes the tables of documents in docs from the stored results.

Each table stands between a line `<!-- table NAME -->` and `<!-- end -->`; its numbers come from
benchmarks/results. `--check` changes nothing and fails when a document is out of date.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.markdown import markdown
from benchmarks.harness.processes import ALLOCATORS, OURS, ROOT

DOCUMENTS = [
    ROOT / "docs" / name
    for name in (
        "benchmarks.md",
        "design.md",
        "graph-memory.md",
        "simulated-gpu.md",
        "will-it-fit.md",
    )
]
RESULTS = ROOT / "benchmarks" / "results"
PLACE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Records = Sequence[Mapping[str, Any]]


def unique(records: Records, key: str) -> list[str]:
    return list(dict.fromkeys(record[key] for record in records))


def find(records: Records, **wanted: str) -> Mapping[str, Any] | None:
    for record in records:
        if all(record[key] == value for key, value in wanted.items()):
            return record
    return None


def ratio(record: Mapping[str, Any]) -> str:
    return f"{record['peak_reserved'] / record['peak_allocated']:.3f}"


def fidelity(records: Records) -> str:
    from benchmarks.training.fidelity import ALLOCATORS as COMPARED
    from benchmarks.training.fidelity import WORKLOADS

    allocators = [name for name in unique(records, "allocator") if name in COMPARED]
    rows = []
    for workload in unique(records, "workload"):
        if workload not in WORKLOADS:
            continue
        found = [find(records, workload=workload, allocator=name) for name in allocators]
        allocated = next(r for r in found if r is not None)["peak_allocated"]
        rows.append([workload, f"{allocated / 1e9:.2f}", *(ratio(r) if r else "-" for r in found)])
    return markdown(["workload", "allocated, GB", *allocators], rows)


def clock(records: Records) -> str:
    # Other tables need none of what it imports.
    from benchmarks.training.fidelity import STORED, read, timed

    headings = ("GPU, ms", "simulated", "difference", "GPU, peak", "simulated", "difference")
    rows = timed(read(STORED), records)
    return markdown(["workload", "allocator", *headings], rows)


def families(records: Records) -> str:
    from benchmarks.families.comparison import Record, by_family, pairs

    simulated = json.loads((RESULTS / "families_simulated.json").read_text())
    found, _ = pairs([Record(**r) for r in records], [Record(**r) for r in simulated])
    return markdown(*by_family(found))


def largest(records: Records) -> str:
    from benchmarks.families.largest import HEADINGS, Record, rows

    return markdown(HEADINGS, rows([Record(**r) for r in records]))


def serving(records: Records) -> str:
    from benchmarks.graphs.serving import Record, rows

    return markdown(*rows([Record(**r) for r in records]))


def turns(records: Records, nanoseconds_a_unit: float = 1) -> str:
    """The table of a benchmark with turns: medians, in units of so many nanoseconds."""
    working = [record for record in records if not record["problem"]]
    native = find(working, allocator="native")
    assert native is not None, "there is no run of the native allocator to compare with"
    rows = []
    for case, reference in native["nanoseconds"].items():
        base = statistics.median(reference)
        cells = []
        for record in working:
            if case not in record["nanoseconds"]:
                cells.append("-")
                continue
            median = statistics.median(record["nanoseconds"][case])
            units = median / nanoseconds_a_unit
            cells.append(f"{units:,.{0 if units >= 10 else 1}f} ({median / base:.2f})")
        rows.append([case, *cells])
    return markdown(["case", *(record["allocator"] for record in working)], rows)


def recording(records: Records) -> str:
    from benchmarks.latency.recording import CASES, beside

    rows = [[level, *(beside(r["nanoseconds"], level) for r in records)] for level in CASES]
    return markdown(["history", *(record["allocator"] for record in records)], rows)


def training(records: Records) -> str:
    """ferro_alloc's time of a step relative to each other's, and the reserved memory of each."""
    from benchmarks.frontier.limits import Record
    from benchmarks.training.passes import time_beside

    allocators = [name for name in ALLOCATORS if find(records, allocator=name, problem="")]
    rows = []
    for workload in unique(records, "workload"):
        found = [find(records, workload=workload, allocator=a, problem="") for a in allocators]
        times = [
            f"{time_beside(Record(**r)):.3f}" if r and r.get("seconds_beside") else "-"
            for r, name in zip(found, allocators, strict=True)
            if name != OURS
        ]
        rows.append([workload, *times, *(ratio(r) if r else "-" for r in found)])
    by = [f"time by {name}'s" for name in allocators if name != OURS]
    return markdown(["workload", *by, *(f"{name} reserves" for name in allocators)], rows)


def frontier(records: Records) -> str:
    from benchmarks.frontier.limits import Record, rows

    return markdown(*rows([Record(**record) for record in records]))


def near_full(records: Records) -> str:
    from benchmarks.frontier.near_full import Record, rows

    return markdown(*rows([Record(**record) for record in records]))


def replay(records: Records) -> str:
    # numpy and the traces are needed only here.
    from benchmarks.replay.program import ON_GPU, ON_GPU_ACTIVE, driver_ms

    rows = []
    for record in records:
        name = record["trace"]
        used = record["peak_active" if name in ON_GPU_ACTIVE else "peak_allocated"]
        stored = ON_GPU.get(name) or ON_GPU_ACTIVE.get(name)
        milliseconds = driver_ms(record["calls"])
        rows.append(
            [
                name,
                f"{record['page_bytes'] >> 20} MiB",
                f"{used / 1e9:.2f}",
                *([f"{value:.3f}" for value in stored] if stored else ["-", "-"]),
                f"{record['peak_reserved'] / used:.3f}",
                f"{milliseconds:.0f}",
                f"{milliseconds - driver_ms(record['calls_at_half']):.0f}",
                f"{record['slowest_microseconds'] / 1e3:.1f}",
            ]
        )
    headings = ("trace", "page", "used, GB", "native", "expandable", "ferro_alloc")
    return markdown([*headings, "driver, ms", "of that in the 2nd half", "slowest"], rows)


def mebibytes(records: Records, names: Mapping[str, str]) -> str:
    """MiB (and the ratio to native's) of the keys of `names`, which has their labels."""
    working = [record for record in records if not record["problem"]]
    native = find(working, allocator="native")
    assert native is not None, "there is no run of the native allocator to compare with"
    rows = []
    for key, name in names.items():
        sizes = [record["bytes"][key] for record in working]
        base = native["bytes"][key]
        rows.append([name, *(f"{size / (1 << 20):,.0f} ({size / base:.2f})" for size in sizes)])
    return markdown(["MiB", *(record["allocator"] for record in working)], rows)


graph_memory = partial(
    mebibytes, names={"results": "live results", "shared": "one pool", "separate": "a pool each"}
)
compiled = partial(
    mebibytes,
    names={
        "peak_allocated": "peak allocated",
        "peak_reserved": "peak reserved",
        "reserved": "reserved at the end",
        "reserved_after_empty_cache": "after `empty_cache()`",
        "graph_pools": "in the pool of the graphs",
    },
)


def graph_situations(records: Records) -> str:
    from benchmarks.situations import rows

    (_, _, *allocators), found = rows(records)
    lines = [[f"`{name}`, {way.replace('_', ' ')}", *cells] for name, way, *cells in found]
    return markdown(["situation", *allocators], lines)


def scaling(records: Records) -> str:
    from benchmarks.scaling.program import Record, rows

    return markdown(*rows([Record(**record) for record in records]))


# For each table, the files of its records and the function that makes it.
TABLES: Mapping[str, tuple[str, Callable[[Records], str]]] = {
    "compiled": ("compiled_simulated.json", compiled),
    "clock": ("fidelity_clock.json", clock),
    "largest": ("largest_gpu.json", largest),
    "serving": ("serving_gpu.json", serving),
    "families": ("families_gpu.json", families),
    "fidelity": ("frontier_gpu.json conv_plain_gpu.json", fidelity),
    "fidelity_simulated": ("fidelity_simulated.json", fidelity),
    "frontier": ("frontier_gpu.json", frontier),
    "frontier_simulated": ("frontier_simulated.json", frontier),
    "graph_memory": ("graphs_gpu.json", graph_memory),
    "graph_situations": ("situations_gpu.json", graph_situations),
    "graphs": ("graphs_gpu.json", partial(turns, nanoseconds_a_unit=1e3)),
    "hit_path": ("hit_path_gpu.json", turns),
    "observing": ("observing_gpu.json", turns),
    "near_full": ("near_full_gpu.json", near_full),
    "near_full_simulated": ("near_full_simulated.json", near_full),
    "ranks": ("ranks_gpu.json", partial(turns, nanoseconds_a_unit=1e3)),
    "recording": ("recording_gpu.json", recording),
    "scaling": ("scaling.json", scaling),
    "scattered": ("scattered_gpu.json", partial(turns, nanoseconds_a_unit=1e3)),
    "sharing": ("sharing_gpu.json", partial(turns, nanoseconds_a_unit=1e3)),
    "training": ("frontier_gpu.json", training),
    "replay": ("replay.json", replay),
}


def fill(text: str, results: Path) -> str:
    """The document with all tables updated; a table without stored results is a sentence."""

    def table(place: re.Match[str]) -> str:
        sources, make = TABLES[place[2]]
        paths = [results / source for source in sources.split()]
        records = [r for path in paths if path.exists() for r in json.loads(path.read_text())]
        made = make(records) if records else f"No results are stored in `{sources}`.\n"
        return f"{place[1]}{made}{place[3]}"

    return PLACE.sub(table, text)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, compare only")
    options = parser.parse_args(argv)
    outdated = False
    for document in DOCUMENTS:
        text = document.read_text()
        filled = fill(text, RESULTS)
        if not options.check:
            document.write_text(filled)
        elif filled != text:
            outdated = True
            print(f"{document.name} is out of date: run `python -m benchmarks.results.tables`")
    return int(outdated)


if __name__ == "__main__":
    sys.exit(main())
