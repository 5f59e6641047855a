"""The frontier's picture: the least memory of each allocator, and the cost of that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.frontier.limits import Record

COLOURS = {
    "native": "#8a8f98",
    "expandable": "#2a78d6",
    "cudaMallocAsync": "#e0a01b",
    "ferro_alloc": "#c8401f",
}
HEIGHT = 0.8  # of a workload's rows; the distance between workloads is 1


def draw(records: Sequence[Record], path: Path) -> None:
    """One row for each allocator on each workload. The left panel shows the range from its smallest
    limit to its reserved memory without a limit; the right one, if known, the driver's time in both
    cases."""
    records = [record for record in records if not record.problem]
    workloads = list(dict.fromkeys(record.workload for record in records))
    allocators = [name for name in COLOURS if any(r.allocator == name for r in records)]
    known = any(record.costs["driver_ms"] is not None for record in records)
    figure = Figure(figsize=(10, 0.62 * len(workloads) + 1.6), layout="constrained", dpi=130)
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2 if known else 1, sharey=True, squeeze=False)[0]
    for record in records:
        number = allocators.index(record.allocator)
        y = workloads.index(record.workload) + (number - (len(allocators) - 1) / 2) * (
            HEIGHT / len(allocators)
        )
        colour = COLOURS[record.allocator]
        ends = [record.peak_reserved / record.peak_allocated]
        times = [record.costs["driver_ms"]]
        if record.smallest_limit is not None:
            ends.append(record.smallest_limit / record.peak_allocated)
            times.append(record.costs_at_limit["driver_ms"])
        for panel, values in zip(panels, (ends, times), strict=False):
            panel.plot(values, [y] * len(values), color=colour, lw=2, alpha=0.4)
            marks = {"color": colour, "ms": 5, "clip_on": False}
            panel.plot(values[:1], [y], "o", markerfacecolor="white", **marks)
            panel.plot(values[1:], [y] * len(values[1:]), "o", **marks)
    panels[0].set_yticks(range(len(workloads)), workloads)
    panels[0].invert_yaxis()
    panels[0].axvline(1, color="black", lw=0.8)
    panels[0].set_xlabel("memory, of peak allocated")
    if known:
        panels[1].set_xscale("symlog", linthresh=1)
        panels[1].set_xlim(left=0)
        panels[1].set_xlabel("driver time after warm-up, ms (modelled)")
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="x", lw=0.4, alpha=0.5)
    for name in allocators:
        panels[0].plot([], [], "o", color=COLOURS[name], label=name)
    panels[0].plot([], [], "o", color="black", markerfacecolor="white", label="without a limit")
    panels[0].plot([], [], "o", color="black", label="smallest limit")
    handles, _ = panels[0].get_legend_handles_labels()
    figure.legend(
        handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9, frameon=False
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
