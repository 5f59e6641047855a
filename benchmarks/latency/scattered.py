"""A large request when free memory lies in pieces, each between live blocks of the same size.

Blocks of 2 MiB, or of `--piece`, fill the memory twice over; every other one is freed, and then one
request takes as much as they had. ferro_alloc, whose pages are as large as a piece here, moves them
together; the others need new memory. "Cached" is a repetition of the same request, which is a hit.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial

from benchmarks.harness import turns

ROUNDS = 4
SECONDS_PER_CASE = 0.5
PIECE_MIB = 2
SIZES = {"64 MiB": 1 << 26, "1 GiB": 1 << 30}
SMOKE_SIZES = {"64 MiB": 1 << 26}


def scattered(size: int, piece: int, seconds: float) -> float:
    """Median nanoseconds of the request; all memory is released in between."""
    import torch

    found: list[float] = []
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends or len(found) < 3:
        pieces = [
            torch.empty(piece, dtype=torch.uint8, device="cuda") for _ in range(2 * size // piece)
        ]
        del pieces[::2]
        torch.cuda.synchronize()
        started = time.perf_counter()
        large = torch.empty(size, dtype=torch.uint8, device="cuda")
        found.append(time.perf_counter() - started)
        del large, pieces
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    return statistics.median(found) * 1e9


def cached(size: int, seconds: float) -> float:
    import torch

    def take() -> float:
        started = time.perf_counter()
        torch.empty(size, dtype=torch.uint8, device="cuda")
        return time.perf_counter() - started

    take()
    ends = time.perf_counter() + seconds
    found = [take()]
    while time.perf_counter() < ends:
        found.append(take())
    torch.cuda.empty_cache()
    return statistics.median(found) * 1e9


def cases(smoke: bool, piece_mib: int) -> Mapping[str, turns.Case]:
    found: dict[str, turns.Case] = {}
    for name, size in (SMOKE_SIZES if smoke else SIZES).items():
        found[f"{name} from pieces of {piece_mib} MiB"] = partial(scattered, size, piece_mib << 20)
        found[f"{name} cached"] = partial(cached, size)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = turns.parser(__doc__, ROUNDS, SECONDS_PER_CASE)
    parser.add_argument("--piece", type=int, default=PIECE_MIB, metavar="MIB")
    options = turns.parse(parser, argv)
    if options.child is not None:
        os.environ["FERRO_ALLOC_CONF"] = f"page_size_mb:{options.piece}"
        return turns.child(options, partial(cases, options.smoke, options.piece))
    arguments = ["--smoke"] * options.smoke + ["--piece", str(options.piece)]
    records = turns.run("benchmarks.latency.scattered", arguments, options)
    return turns.report(records, "one request", options)


if __name__ == "__main__":
    sys.exit(main())
