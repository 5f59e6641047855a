"""Requests of exactly the cap that a fraction sets. Prints how many of 65 were refused, as JSON.

The argument is the layout.
"""

import json
import sys

import torch

import ferro_alloc

MIB = 1 << 20
ferro_alloc.install(ferro_alloc.Config(layout=sys.argv[1]))
total = torch.cuda.mem_get_info()[1]
caps = [(20 + 14 * number) * MIB for number in range(65)]
refused, beyond = [], 0
for cap in caps:
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(cap / total)
    try:
        torch.empty(cap, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        refused.append(cap // MIB)
    torch.cuda.empty_cache()
    try:
        torch.empty(cap + 1, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        beyond += 1
short = [cap // MIB for cap in caps if int(cap / total * total) < cap]
print(json.dumps({"refused": refused, "beyond": beyond, "truncated": len(short)}))
