"""One family with batches of one size, as a separate program: the subject of
`simulate --what-if`."""

from __future__ import annotations

import argparse
import sys

from benchmarks.families.table import FAMILIES


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    import torch

    torch.manual_seed(0)
    family = FAMILIES[options.family]
    family.function()(**family.sizes_of(options.smoke, options.batch))
    torch.cuda.synchronize()
    return 0


if __name__ == "__main__":
    sys.exit(main())
