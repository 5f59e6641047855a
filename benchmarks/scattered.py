"""A large request when free memory lies in pieces: between live blocks of 2 MiB each.

Blocks of 2 MiB fill the memory twice over; every other one is freed, and then one request takes as
much as they had. ferro_alloc moves their pages together, the others have to find new memory.
"Cached" is the same request when it was made before, and is a hit.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial

from benchmarks import turns

ROUNDS = 4
SECONDS_PER_CASE = 0.5
PIECE = 2 << 20
SIZES = {"64 MiB": 1 << 26, "1 GiB": 1 << 30}
SMOKE_SIZES = {"64 MiB": 1 << 26}


def scattered(size: int, seconds: float) -> float:
    """Nanoseconds of the request, the median; everything is given back in between."""
    import torch

    found: list[float] = []
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends or len(found) < 3:
        pieces = [
            torch.empty(PIECE, dtype=torch.uint8, device="cuda") for _ in range(2 * size // PIECE)
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


def cases(smoke: bool) -> Mapping[str, turns.Case]:
    found: dict[str, turns.Case] = {}
    for name, size in (SMOKE_SIZES if smoke else SIZES).items():
        found[f"{name} from pieces"] = partial(scattered, size)
        found[f"{name} cached"] = partial(cached, size)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = turns.parser(__doc__, ROUNDS, SECONDS_PER_CASE)
    options = turns.parse(parser, argv)
    if options.child is not None:
        return turns.child(options, partial(cases, options.smoke))
    arguments = ["--smoke"] * options.smoke
    records = turns.run("benchmarks.scattered", arguments, options)
    return turns.report(records, "one request", options)


if __name__ == "__main__":
    sys.exit(main())
