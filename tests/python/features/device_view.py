"""The typed view of a device, checked against PyTorch's statistics."""

import json
from dataclasses import asdict, astuple

import torch

import ferro_alloc
from ferro_alloc import FerroError

MIB = 1 << 20
seen = {}


def refusal(call):
    try:
        call()
    except FerroError as error:
        return str(error)
    return ""


seen["before"] = refusal(ferro_alloc.device)
ferro_alloc.install()
seen["initialised by install"] = torch.cuda.is_initialized()
view = ferro_alloc.device()
assert view == ferro_alloc.device(0)
seen["wrong index"] = refusal(lambda: ferro_alloc.device(7))
seen["no index"] = refusal(lambda: ferro_alloc.device(True))
seen["no size"] = refusal(lambda: view.round_size(-1))
seen["empty"] = [value for value in asdict(view.numbers()).values() if value]

seen["round"] = [view.round_size(size) for size in (0, 1, 512, 513, 5000)]
seen["forecast"] = [view.bytes_from_driver(size) // MIB for size in (0, 1, 3 * MIB)]
kept = [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
del kept[1]
again = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
del again
numbers = view.numbers()
seen["numbers"] = [
    numbers.memory_allocated == torch.cuda.memory_allocated() == 9 * MIB,
    numbers.max_memory_allocated == torch.cuda.max_memory_allocated() == 12 * MIB,
    numbers.memory_reserved == torch.cuda.memory_reserved() == 12 * MIB,
    numbers.cached_bytes == 3 * MIB,
    numbers.requested_bytes == torch.cuda.memory_stats()["requested_bytes.all.current"] == 9 * MIB,
    (numbers.blocks, numbers.free_blocks, *asdict(numbers.cache_stats).values()),
]
seen["one by one"] = all(getattr(view, name) == value for name, value in vars(numbers).items())
seen["forecast of what is there"] = view.bytes_from_driver(3 * MIB)
with torch.cuda.stream(torch.cuda.Stream()):
    # A page of an idle stream is used.
    seen["forecast on another stream"] = view.bytes_from_driver(3 * MIB) // MIB
held = [torch.empty(4 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
del held[2], held[0]
before = view.cache_stats
large = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
after = view.cache_stats
seen["late"] = [now - then for then, now in zip(*map(astuple, (before, after)), strict=True)]
del large, held
seen["repr"] = repr(view)
view.reset_peak_stats()
seen["peak"] = view.max_memory_allocated == torch.cuda.max_memory_allocated() == 9 * MIB
del kept
view.empty_cache()
seen["emptied"] = view.memory_reserved
seen["moved"] = ferro_alloc.status().devices[0].pages_moved
ferro_alloc.uninstall()
seen["repr after"] = repr(view)
seen["after"] = refusal(lambda: view.memory_allocated)
print(json.dumps(seen))
