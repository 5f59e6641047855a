"""The demo's picture: peaks of allocated and reserved memory step by step, one panel each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.demo.child import Result

GIB = 1 << 30
ALLOCATED, WASTED, RESERVED = "#2a78d6", "#f1b8a5", "#c8401f"


def draw(results: Sequence[Result], subtitle: str, path: Path) -> None:
    """Panels share their axes, so that heights compare."""
    figure = Figure(figsize=(4.2 * len(results), 4.0), layout="constrained", dpi=130)
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(results), sharex=True, sharey=True, squeeze=False)[0]
    for panel, result in zip(panels, results, strict=True):
        steps = range(1, len(result.step_peak_allocated) + 1)
        allocated = [value / GIB for value in result.step_peak_allocated]
        reserved = [value / GIB for value in result.step_peak_reserved]
        panel.fill_between(
            steps, allocated, color=ALLOCATED, lw=0, label="allocated, peak of the step"
        )
        panel.fill_between(
            steps, allocated, reserved, color=WASTED, lw=0, label="reserved, not allocated"
        )
        panel.plot(steps, reserved, color=RESERVED, lw=1.2)
        ratio = result.peak_reserved / max(1, result.peak_allocated)
        panel.set_title(f"{result.allocator}: peak reserved / allocated {ratio:.3f}", fontsize=10)
        panel.set_xlabel("training step")
        panel.set_xlim(1, len(steps))
        panel.set_ylim(bottom=0)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("GiB")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    figure.suptitle(subtitle, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
