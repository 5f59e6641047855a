"""Which requests for memory differ between the GPU and the simulated one?

    python -m benchmarks.families.requests GPU.json.gz SIMULATED.json.gz

Both files come from `python -m benchmarks.families --requests FILE`. The table shows for each
program: the number of requests on the GPU and on the simulated one, the peak of live bytes, the
number of equal events before the first difference, and the sizes that one side requested more
often, the largest first.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.families.table import MIB

MOST_SIZES = 6


def read(file: Path) -> dict[str, list[int]]:
    with gzip.open(file, "rt") as opened:
        found: dict[str, list[int]] = json.load(opened)
    return found


def equal_events(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of equal events from the start."""
    for number, (mine, yours) in enumerate(zip(one, other, strict=False)):
        if mine != yours:
            return number
    return min(len(one), len(other))


def more_of(one: Sequence[int], other: Sequence[int]) -> list[tuple[int, int]]:
    """Sizes requested more often in `one`, and by how many times more; largest first."""
    left = Counter(size for size in one if size > 0)
    left.subtract(size for size in other if size > 0)
    return sorted(((size, count) for size, count in left.items() if count > 0), reverse=True)


def told(more: Sequence[tuple[int, int]]) -> str:
    words = [f"{count} x {size / MIB:.2f}" for size, count in more[:MOST_SIZES]]
    return ", ".join(words + ["..."] * (len(more) > MOST_SIZES))


def rows(gpu: dict[str, list[int]], simulated: dict[str, list[int]]) -> list[list[str]]:
    lines = []
    for name, there in gpu.items():
        here = simulated.get(name)
        if here is None:
            continue
        numbers = [sum(size > 0 for size in events) for events in (there, here)]
        peaks = [max(accumulate(events), default=0) for events in (there, here)]
        lines.append(
            [
                name.split()[0],
                *(f"{number:,}" for number in numbers),
                *(f"{peak / MIB:,.1f}" for peak in peaks),
                f"{equal_events(there, here):,}",
                told(more_of(there, here)),
                told(more_of(here, there)),
            ]
        )
    return lines


HEADINGS = (
    *("family", "requests", "simulated", "peak, MiB", "simulated", "equal events"),
    *("more of, MiB", "simulated more of"),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("gpu", type=Path)
    parser.add_argument("simulated", type=Path)
    options = parser.parse_args(argv)
    table = Table(*HEADINGS)
    for line in rows(read(options.gpu), read(options.simulated)):
        table.add_row(*line)
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
